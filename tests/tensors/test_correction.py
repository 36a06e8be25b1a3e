"""Corrections of stale gradients, next to plain torch with a copy of the parameters for every worker."""

import random

import pytest
import torch
from torch import Tensor, nn, optim

from corrected import Plain
from paceline.messages import Member
from paceline.pace import parse_pace
from paceline.roles.folds import Norm
from sharded import Job

torch.set_num_threads(1)

NUM_WORKERS = 3
OPTIMIZERS = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: optim.SGD(parameters, lr=0.02, momentum=0.9),
    "adam": lambda parameters: optim.Adam(parameters, lr=0.05),
}


class Quadratic(nn.Module):
    """0.5 * |A (w - target)|^2 over two tensors; `noise` is a worker's batch."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.ParameterList([nn.Parameter(torch.randn(size, generator=generator)) for size in (37, 21)])
        self.a = [torch.rand(size, generator=generator) + 0.2 for size in (37, 21)]

    def gradients(self, values: list[Tensor], step: int) -> list[Tensor]:
        """Of a noisy batch, at any `values`."""
        generator = torch.Generator().manual_seed(100 + step)
        return [a * a * w + 0.3 * torch.randn(w.shape, generator=generator) for a, w in zip(self.a, values, strict=True)]


def plain_of(correction: str, optimizer: str) -> Plain:
    model = Quadratic()
    return Plain(correction, model, OPTIMIZERS[optimizer](model.parameters()), NUM_WORKERS)


class Ours:
    """The same through shards, in the way that `gather` says: accepted one by one, or read at the fold."""

    def __init__(self, correction: str, optimizer: str, *, gather: bool = False, num_shards: int = 2) -> None:
        self.model = Quadratic()
        self.job = Job(self.model, OPTIMIZERS[optimizer](self.model.parameters()), num_shards, NUM_WORKERS, window_bytes=64)
        self.gather = gather
        self.version = 0
        self.read = [0] * NUM_WORKERS
        self.strength = float(correction.partition(":")[2] or 0)
        self.is_bound = correction.startswith("bound")
        for shard in self.job.shards:
            shard.set_pace(parse_pace(f"async,correction={correction}"))
        for worker in range(NUM_WORKERS):
            self.pull(worker)

    def values(self) -> list[Tensor]:
        return [self.job.views[index].clone() for index in range(2)]

    def pull(self, worker: int) -> None:
        self.job.pull(worker)
        self.read[worker] = self.version

    def update(self, workers: list[int], gradients: list[list[Tensor]]) -> None:
        members, raw = [], 1.0 if self.gather else 1 / len(workers)
        for worker, one in zip(workers, gradients, strict=True):
            self.job.write(worker, one)
            member = Member(worker, 0, 0, 0, raw, False, 0, self.version - self.read[worker])
            if self.gather:
                for shard in self.job.shards:
                    shard.gather(member)
                # the buffer and the copy of the parameters are the worker's again
                self.job.arenas[worker].fill_(1)
            members.append(member)
        scale = 1.0
        if self.gather:
            members = [Member(m.worker, 0, 0, 0, m.weight, True, 0, m.staleness) for m in members]
            scale = 1 / len(members)
        norm = Norm(0.0, self.strength if self.is_bound else None, 0.0)
        for shard in self.job.shards:
            shard.reduce(tuple(members), scale)
            norm.moved += shard.moved()
        bounded = norm.factors()[1]
        factor, lr_factor = (bounded, 1.0) if self.job.spec.scales_gradients else (1.0, bounded)
        for shard in self.job.shards:
            shard.apply(factor=factor, lr_factor=lr_factor, hyper=b"", absent=b"")
        self.version += 1


def train(sides: list, *, num_updates: int, members: int = 1, seed: int = 0) -> None:
    """Random workers make every update of gradients at what each had read, and then pull."""
    draw = random.Random(seed)
    reference = sides[0]
    for step in range(num_updates):
        workers = sorted(draw.sample(range(NUM_WORKERS), members))
        gradients = [reference.model.gradients(reference.backup[worker], 10 * step + worker) for worker in workers]
        for side in sides:
            side.update(workers, gradients)
            for worker in workers:
                side.pull(worker)


def distance(a, b) -> float:
    return max(float((x - y).norm() / y.norm()) for x, y in zip(a.values(), b.values(), strict=True))


CORRECTIONS = ("dc:0.5", "dca:2", "gap:1", "gap:0.5", "bound:0.02")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize(("members", "gather"), [(1, False), (1, True), (2, False), (2, True)])
def test_twenty_updates_are_those_of_plain_torch_with_a_copy_for_each_worker(correction, optimizer, members, gather):
    plain, ours, uncorrected = plain_of(correction, optimizer), Ours(correction, optimizer, gather=gather), Ours("none", optimizer)
    train([plain, ours, uncorrected], num_updates=20, members=members)
    assert distance(ours, plain) < 1e-5
    assert distance(uncorrected, plain) > 1e-3


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_gradient_that_is_not_stale_is_left_as_it_is(correction, optimizer):
    """Also when it was computed in place, so that what lies in the worker's memory is old."""
    corrected, plain = Ours(correction, optimizer), Ours("none", optimizer)
    gradients = [corrected.model.gradients(corrected.values(), step) for step in range(5)]
    for one in gradients:
        for side in (corrected, plain):
            side.read[0] = side.version
            side.update([0], [one])
    assert all(torch.equal(x, y) for x, y in zip(corrected.values(), plain.values(), strict=True))


def stale_step(correction: str, optimizer: str) -> list[Tensor]:
    """The change of the parameters in one stale update after some fresh ones."""
    side = Ours(correction, optimizer)
    for step in range(6):
        side.pull(1)
        side.update([1], [side.model.gradients(side.values(), step)])
    before = side.values()
    side.update([0], [side.model.gradients(before, 99)])
    return [now - then for now, then in zip(side.values(), before, strict=True)]


def flat(change: list[Tensor]) -> Tensor:
    return torch.cat(change).double()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_bound_shortens_the_step_and_keeps_its_direction(optimizer):
    plain, bounded = (flat(stale_step(correction, optimizer)) for correction in ("none", "bound:0.02"))
    assert bounded.norm() < 0.9 * plain.norm()
    assert torch.cosine_similarity(bounded, plain, dim=0) > 1 - 1e-6


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_gap_aware_shortens_the_step_of_each_element_by_its_own_factor(optimizer):
    ratio = flat(stale_step("gap:1", optimizer)) / flat(stale_step("none", optimizer))
    assert 0.0 < ratio.min() < 0.3 < 0.6 < ratio.max() < 1.0


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("correction", ["dc:2", "dca:0.2"])
def test_delay_compensation_turns_the_step(optimizer, correction):
    plain, corrected = (flat(stale_step(one, optimizer)) for one in ("none", correction))
    assert 0.5 < torch.cosine_similarity(corrected, plain, dim=0) < 0.9999


@pytest.mark.parametrize("strength", ["0.05", "1000"])
def test_a_bounded_step_is_the_plain_one_times_the_strength_over_the_square_of_the_way(strength):
    for optimizer in ("sgd", "adam"):
        side = Ours(f"bound:{strength}", optimizer)
        start = side.values()
        for step in range(3):
            side.pull(1)
            side.update([1], [side.model.gradients(side.values(), step)])
        moved = sum(float((now - then).square().sum()) for now, then in zip(side.values(), start, strict=True))
        plain = Ours("none", optimizer)
        for step in range(3):
            plain.update([1], [plain.model.gradients(plain.values(), step)])
        before, gradient = side.values(), side.model.gradients(side.values(), 9)
        for one in (side, plain):
            one.update([0], [gradient])
        ours, theirs = (flat([now - then for now, then in zip(one.values(), before, strict=True)]) for one in (side, plain))
        assert float(ours.norm()) == pytest.approx(min(1.0, float(strength) / moved) * float(theirs.norm()), rel=1e-4)


def test_gap_aware_does_not_punish_what_seldom_moves():
    """Two workers in turn, an element that moves in every tenth update only: one update old is one update's length."""
    side = Ours("gap:1", "sgd")
    seldom = [torch.zeros(37), torch.zeros(21)]
    for step in range(40):
        gradient = [torch.ones(37), torch.ones(21)]
        gradient[0][0] = 1.0 if step % 10 == 0 else 0.0
        before = side.values()
        side.update([step % 2], [gradient])
        side.pull(step % 2)
        seldom[0] += (side.values()[0] - before[0]).abs()
    assert float(seldom[0][0]) == pytest.approx(4 * 0.05, rel=1e-4)


def test_another_correction_forgets_what_the_last_one_remembered():
    ours, fresh = Ours("dca:2", "sgd"), Ours("dca:2", "sgd")
    plain = plain_of("dca:2", "sgd")
    train([plain, ours, fresh], num_updates=6)
    for correction in ("none", "dca:2"):
        for shard in ours.job.shards:
            shard.set_pace(parse_pace(f"async,correction={correction}"))
    train([plain, ours, fresh], num_updates=6, seed=1)
    assert distance(fresh, plain) < 1e-5
    assert distance(ours, fresh) > 1e-5


def test_what_a_worker_that_is_gone_is_remembered_by_is_let_go():
    side = Ours("dca:2", "sgd")
    train([plain_of("dca:2", "sgd"), side], num_updates=6)
    for shard in side.job.shards:
        shard.detach(1, 0)
        assert {owner[0] for owner in shard._stale._rule.memory._numbers} == {0, 2}


def test_a_clipped_norm_is_that_of_the_corrected_gradient():
    side, plain = Ours("dc:0.5", "sgd"), plain_of("dc:0.5", "sgd")
    for step in range(3):
        for one in (side, plain):
            one.update([1], [plain.model.gradients(plain.values() if one is plain else side.values(), step)])
            one.pull(1)
    gradient = plain.model.gradients(plain.backup[0], 9)
    expected = sum(float(one.double().square().sum()) for one in plain.corrected(0, gradient))
    side.job.write(0, gradient)
    for shard in side.job.shards:
        shard.reduce((Member(0, 0, 0, 0, 1.0, False, 0, 3),), 1.0)
    assert sum(shard.square_norm() for shard in side.job.shards) == pytest.approx(expected, rel=1e-4)


def test_bfloat16_parameters_are_corrected_in_float32():
    torch.manual_seed(0)
    model = nn.Linear(16, 8, bias=False).to(torch.bfloat16)
    job = Job(model, optim.SGD(model.parameters(), lr=0.5), 1, 2)
    start = job.views[0].float().clone()
    for shard in job.shards:
        shard.set_pace(parse_pace("async,correction=dc:2"))
    job.pull(0)
    first, second = torch.randn(8, 16).bfloat16(), torch.randn(8, 16).bfloat16()
    job.write(1, [first])
    job.fold((Member(1, 0, 0, 0, 1.0),))
    now = job.views[0].clone()
    job.write(0, [second])
    job.fold((Member(0, 0, 0, 0, 1.0, staleness=1),))
    g = second.float()
    corrected = (g + 2.0 * g * g * (now.float() - start)).bfloat16()
    assert torch.equal(job.views[0], now.sub(corrected, alpha=0.5))
