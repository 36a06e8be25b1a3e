"""Gradients that are copied off a device: what is published is bit for bit what it is without the copies, whenever they are made."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from paceline.tensors import replica
from replicas import Bench, Pretended, batch, bench_of, loss_of, mlp, norm_of, same

torch.set_num_threads(1)


class Branches(nn.Module):
    """Of two branches, a step may use both, one or none; the last layer's first gradients are zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.branches = nn.ModuleList([nn.Linear(7, 5), nn.Linear(7, 5)])
        self.head = nn.Linear(5, 3)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: torch.Tensor, used: list[int]) -> torch.Tensor:
        return self.head(sum((self.branches[i](x) for i in used), x.new_zeros(len(x), 5)))


def staged(patch: pytest.MonkeyPatch, model: nn.Module, seed: int = 0) -> tuple[Bench, Pretended]:
    """A model on a device that is pretended."""
    device = Pretended(seed)
    with patch.context() as inside:
        inside.setattr(replica, "staging_for", lambda *_: device)
        return bench_of(model), device


def nothing(bench: Bench) -> None:
    """As most scripts do."""


def clip(bench: Bench) -> None:
    nn.utils.clip_grad_norm_(bench.model.parameters(), 0.5)


def clip_one_by_one(bench: Bench) -> None:
    nn.utils.clip_grad_norm_(bench.model.parameters(), 0.5, foreach=False)


def replace(bench: Bench) -> None:
    for parameter in bench.model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad * 0.5


def drop_one(bench: Bench) -> None:
    next(bench.model.parameters()).grad = None


def write_past_the_counters(bench: Bench) -> None:
    for parameter in bench.model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.mul_(0.25)


def look(bench: Bench) -> None:
    bench.replica.local_norm()


def look_and_write(bench: Bench) -> None:
    look(bench)
    write_past_the_counters(bench)


CHANGES = [nothing, clip, clip_one_by_one, replace, drop_one, write_past_the_counters, look, look_and_write]
Use = tuple[int, list[int]]


def backward(bench: Bench, uses: list[Use], dtype: torch.dtype) -> None:
    for seed, used in uses:
        bench.model(batch(dtype, seed=seed), used).float().square().sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(12))
def test_any_course_of_steps_publishes_the_same_bits(dtype: torch.dtype, seed: int, monkeypatch: pytest.MonkeyPatch):
    chance = random.Random(seed)
    direct = bench_of(Branches().to(dtype))
    through, _ = staged(monkeypatch, Branches().to(dtype), seed)
    for step in range(12):
        change: Callable[[Bench], None] = chance.choice(CHANGES) if step > seed % 4 else nothing
        uses = [(chance.randrange(99), chance.choice([[], [0], [1], [0, 1]])) for _ in range(chance.choice([1, 1, 3]))]
        found = []
        for bench in (direct, through):
            bench.optimizer.zero_grad()
            backward(bench, uses, dtype)
            change(bench)
            found.append(bench.replica.finish_gradient())
        here, there = found
        published = direct.published(step % 2)
        assert same(through.published(step % 2), published), (step, change.__name__, uses)
        assert there.absent == here.absent
        assert there.norm == pytest.approx(norm_of(published), rel=1e-6, abs=1e-12)
        for bench in (direct, through):
            bench.replica.flip(1 - step % 2)


def run_steps(bench: Bench, device: Pretended, *changes: Callable[[Bench], None], num_backwards: int = 1) -> list[tuple[int, int]]:
    """How many copies each step's hooks have begun, and the whole step."""
    counts = []
    for step, change in enumerate(changes):
        start = device.num_brought
        bench.optimizer.zero_grad()
        for _ in range(num_backwards):
            loss_of(bench.model, batch(seed=step)).backward()
        by_hooks = device.num_brought - start
        change(bench)
        bench.replica.finish_gradient()
        counts.append((by_hooks, device.num_brought - start))
        bench.replica.flip(1 - step % 2)
    return counts


def test_each_gradient_is_copied_once_a_step_by_its_hook(monkeypatch: pytest.MonkeyPatch):
    bench, device = staged(monkeypatch, mlp())
    assert run_steps(bench, device, nothing, nothing, look) == [(0, 4), (4, 4), (4, 4)]


def test_of_several_backward_passes_the_last_ones_hooks_copy(monkeypatch: pytest.MonkeyPatch):
    bench, device = staged(monkeypatch, mlp())
    assert run_steps(bench, device, nothing, nothing, nothing, num_backwards=3) == [(0, 4), (4, 4), (4, 4)]


@pytest.mark.parametrize("change", [clip, replace, write_past_the_counters])
def test_after_a_gradient_was_changed_hooks_copy_no_more(change: Callable[[Bench], None], monkeypatch: pytest.MonkeyPatch):
    bench, device = staged(monkeypatch, mlp())
    assert run_steps(bench, device, nothing, change, change, nothing) == [(0, 4), (4, 8), (0, 4), (0, 4)]


def test_a_step_that_a_scaler_skips_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    direct, (through, _) = bench_of(mlp()), staged(monkeypatch, mlp())
    for step, is_skipped in enumerate((False, False, True, False)):
        for bench in (direct, through):
            bench.optimizer.zero_grad()
            loss_of(bench.model, batch(seed=step)).backward()
            if is_skipped:
                bench.optimizer.zero_grad()
                loss_of(bench.model, batch(seed=9)).backward()
            bench.replica.finish_gradient()
        assert same(through.published(step % 2), direct.published(step % 2))
        for bench in (direct, through):
            bench.replica.flip(1 - step % 2)


def test_memory_that_is_being_copied_from_may_not_be_written_before_that_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    bench, device = staged(monkeypatch, mlp())
    bench.read(in_place=True)
    bench.shared.add_(1)
    with pytest.raises(AssertionError, match="while it was being copied"):
        device.wait()
