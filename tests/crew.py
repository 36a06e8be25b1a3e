"""A group of workers in one process: real models, hooks and shards, and sums over a real Gloo group."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paceline.messages import Member
from paceline.session.sums import Sums
from paceline.tensors.whole import WholeShard
from paceline.transport.collective import Group, Seat, convene
from replicas import bench_of

LR = 0.1
WIDTH = 4
DEEDS = ("plain", "plain", "plain", "zeroed", "twice", "touch", "data", "replace", "part", "more", "refused", "idle")


class Gradient(NamedTuple):
    """What a mate has for an update: its weight and values by name; `is_in`: it is in the update."""

    weight: float
    values: dict[str, Tensor]
    is_in: bool


class Mate:
    """One member: `samples` are those of the step in hand. `width` makes its last layers as large."""

    def __init__(self, number: int, group: Group, *, is_early: bool, device: torch.device | None, width: int) -> None:
        torch.manual_seed(0)
        self.number, self.group, self.width = number, group, width
        self.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 2))
        layers = [self.model[0], self.model[2], self.model[4]]
        optimizer = torch.optim.SGD([{"params": layer.parameters()} for layer in layers], lr=LR)
        bench = bench_of(self.model, optimizer)
        self.replica = bench.replica
        self.shard = WholeShard(bench.replica._spec, self.replica.hold(), number, bench.arena, device=device, bucket_elements=1)
        self.replica.live_in(self.shard.lend_parameters(), near=True)
        self.replica.point("whole")
        self.shard.meet((0, 1))
        self.samples = 0
        gradients = self.replica.enter_group(lambda first, past: self.sums.written(first, past, float(self.samples)))
        self.sums = Sums(self.shard, gradients, group, is_early=is_early)

    def compute(self, deed: str, draw: random.Random) -> Gradient:
        """One step's gradient, come to as `deed` says."""
        self.model.zero_grad(set_to_none=deed != "zeroed")
        self.samples = draw.randint(1, 5)
        for _ in range({"idle": 0, "twice": 2}.get(deed, 1)):
            x = torch.tensor([[draw.uniform(-1, 1) for _ in range(6)] for _ in range(self.samples)])
            self.model[0 if deed != "part" else 2 :](x if deed != "part" else x[:, :5]).square().mean().div(self.width / WIDTH).backward()
        parameters = dict(self.model.named_parameters())
        some = parameters[draw.choice(list(parameters))]
        if deed == "touch":
            some.grad.mul_(0.5)
        elif deed == "data":
            some.grad.data.mul_(0.5)  # moves no version counter
        elif deed == "replace":
            some.grad = torch.full_like(some, 0.25)
        elif deed == "more":
            self.samples += 1
        if deed != "idle":
            self.replica.finish_gradient()
            self.sums.stepped()
        values = {name: torch.zeros_like(one) if one.grad is None else one.grad.clone() for name, one in parameters.items()}
        return Gradient(float(self.samples), values, deed not in ("idle", "refused"))

    def parameters(self) -> Tensor:
        """All of them, as they are now."""
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])

    def update(self, gradients: list[Gradient]) -> None:
        """Make the update of those that are in it."""
        self.sums.sum(self.shard.weight(members := members_of(gradients)))
        self.shard.reduce(members, 1.0 / sum(member.weight for member in members))
        self.shard.apply(factor=1.0, lr_factor=1.0, hyper=b"", absent=b"")
        self.replica.settle()
        self.replica.flip(0, keep=True)


def members_of(gradients: list[Gradient]) -> tuple[Member, ...]:
    """A fold's members."""
    return tuple(Member(number, 0, 0, 0, one.weight) for number, one in enumerate(gradients) if one.is_in)


class Crew:
    """Two mates; `is_early`: which of them guess. With a `device` their shards are there. To be closed."""

    def __init__(self, *is_early: bool, device: torch.device | None = None, width: int = WIDTH) -> None:
        store, port = convene("127.0.0.1")
        seats = [(Seat(1, rank, len(is_early), "127.0.0.1"), None if rank else store) for rank in range(len(is_early))]
        self._threads = ThreadPoolExecutor(len(is_early))
        groups = self._threads.map(lambda at: Group(*at, ("127.0.0.1", port), timeout_s=20.0), seats)
        pairs = zip(groups, is_early, strict=True)
        self.mates = [Mate(rank, group, is_early=guesses, device=device, width=width) for rank, (group, guesses) in enumerate(pairs)]

    def update(self, gradients: list[Gradient]) -> None:
        """All make the update, side by side."""
        list(self._threads.map(lambda mate: mate.update(gradients), self.mates))

    def play(self, seed: int, num_updates: int, deeds: tuple[str, ...] = DEEDS) -> list[Tensor]:
        """Updates by chance, each held against plain arithmetic; returns what the parameters were behind each."""
        draw, states = random.Random(seed), []
        for _ in range(num_updates):
            before = {name: one.detach().clone() for name, one in self.mates[0].model.named_parameters()}
            gradients = [mate.compute(draw.choice(deeds), draw) for mate in self.mates]
            if not any(one.is_in for one in gradients):
                continue
            self.update(gradients)
            self._check(before, [one for one in gradients if one.is_in])
            states.append(self.mates[0].parameters())
        return states

    def _check(self, before: dict[str, Tensor], gradients: list[Gradient]) -> None:
        total = sum(one.weight for one in gradients)
        for mate in self.mates:
            assert torch.equal(mate.parameters(), self.mates[0].parameters()), "the mates have different parameters"
            for name, value in mate.model.named_parameters():
                expected = before[name] - LR * sum(one.values[name] * (one.weight / total) for one in gradients)
                torch.testing.assert_close(value.detach(), expected, rtol=1e-6, atol=1e-6)

    def close(self) -> None:
        """Let the group go."""
        for mate in self.mates:
            mate.group.close()
        self._threads.shutdown()


def played(
    seed: int,
    num_updates: int,
    *is_early: bool,
    device: torch.device | None = None,
    width: int = WIDTH,
    then: Callable[[Crew], object] = lambda _: None,
) -> list[Tensor]:
    """What a new crew's parameters were behind each update; `then` looks at the crew."""
    crew = Crew(*is_early, device=device, width=width)
    try:
        states = crew.play(seed, num_updates)
        then(crew)
        return states
    finally:
        crew.close()
