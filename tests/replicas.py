"""A worker's replica on plain tensors, and what its servers would see; with the copies of a device between, if asked."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from paceline.logic.partition import Layout, arena_map, layout_of, parameter_arena_bytes
from paceline.tensors import replica
from paceline.tensors.replica import Replica
from paceline.tensors.spec import spec_of
from paceline.tensors.staging import Copies, Staging
from paceline.tensors.storage import tensor_at


class Pretended(Staging):
    """A device that is the CPU: each copy to shared memory is made at once or only when it is waited for, as chance has it.

    Copies from shared memory must find it unchanged until they are waited for. `num_brought` counts copies to it.
    """

    def __init__(self, seed: int = 0) -> None:
        self.num_brought = 0
        self._chance = random.Random(seed)
        self._brought: list[tuple[Tensor, Tensor]] = []
        self._sent: list[tuple[Tensor, Tensor]] = []

    def bring(self, copies: Copies) -> None:
        for into, source in copies:
            self.num_brought += 1
            # In order: one that is made late holds up those to the same place.
            if self._chance.random() < 0.5 and all(into is not late for late, _ in self._brought):
                into.copy_(source)
            else:
                self._brought.append((into, source))

    def send(self, copies: Copies) -> None:
        for into, source in copies:
            into.copy_(source)
            self._sent.append((source, source.clone()))

    def wait(self) -> None:
        for into, source in self._brought:
            into.copy_(source)
        assert all(torch.equal(source, then) for source, then in self._sent), "shared memory was written while it was being copied"
        self._brought, self._sent = [], []

    def release(self) -> None:
        self.wait()


def pretend(patch: pytest.MonkeyPatch, seed: int = 0) -> None:
    """Every replica's model is on a device from now on, as far as Paceline knows."""
    patch.setattr(replica, "staging_for", lambda *_: Pretended(seed))


class Bench(NamedTuple):
    """A replica on plain tensors, and what its servers would see."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    replica: Replica
    arena: torch.Tensor
    shared: torch.Tensor

    def read(self, *, in_place: bool) -> None:
        """A pull."""
        self.replica.await_copies()
        if not in_place:
            copy_out(layout_of(spec_of(self.model, self.optimizer)), self.shared, self.arena)
        self.replica.point("shards" if in_place else "private")
        self.replica.copy_in()

    def published(self, buffer: int) -> dict[str, torch.Tensor]:
        layout = layout_of(spec_of(self.model, self.optimizer))
        start = arena_map(layout).gradients[buffer]
        return {
            slot.spec.name: tensor_at(self.arena, start + slot.start, slot.spec).clone() for slot in layout.slots if slot.spec.group >= 0
        }


def copy_out(layout: Layout, shared: torch.Tensor, arena: torch.Tensor) -> None:
    """What the servers do at a pull: the parameters into the worker's private memory."""
    start = arena_map(layout).parameters
    arena[start : start + layout.trainable_bytes].copy_(shared[: layout.trainable_bytes])


def bench_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, shared: torch.Tensor | None = None) -> Bench:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    spec = spec_of(model, optimizer)
    layout = layout_of(spec)
    arena = torch.zeros(arena_map(layout).size_bytes, dtype=torch.uint8)
    first = shared is None
    shared = torch.zeros(parameter_arena_bytes(layout)[1], dtype=torch.uint8) if shared is None else shared
    ours = Replica(model, optimizer, spec, arena, shared)
    if first:
        ours.seed()
    else:
        ours.adopt_constants()
    bench = Bench(model, optimizer, ours, arena, shared)
    bench.read(in_place=False)
    return bench


def mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def batch(dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
    return torch.randn(4, 7, generator=torch.Generator().manual_seed(seed)).to(dtype)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).float().square().sum()


def plain_gradients(model: nn.Module, *xs: torch.Tensor) -> dict[str, torch.Tensor]:
    for x in xs:
        loss_of(model, x).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def norm_of(gradients: dict[str, torch.Tensor]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in found)
