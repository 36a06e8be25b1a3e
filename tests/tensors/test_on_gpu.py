"""A replica on a real GPU: what arrives in shared memory, and what comes back. `benchmarks/gpu.py` has the whole runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.logic.partition import arena_map, layout_of
from paceline.tensors.spec import spec_of
from paceline.tensors.staging import Beside
from paceline.tensors.storage import tensor_at
from paceline.tensors.whole import WholeShard
from replicas import Bench, bench_of

pytestmark = pytest.mark.gpu


def large() -> nn.Module:
    """So large that copies are under way for a while after the backward pass: 200 MB."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(4096, 4096), nn.Tanh())), nn.BatchNorm1d(4096)).to("cuda")


def backward(bench: Bench, seed: int) -> None:
    torch.manual_seed(seed)
    bench.model(torch.randn(64, 4096, device="cuda")).square().sum().backward()


def assert_published(bench: Bench, buffer: int, norm: float) -> None:
    gradients = {name: parameter.grad for name, parameter in bench.model.named_parameters() if parameter.grad is not None}
    for name, values in bench.published(buffer).items():
        assert torch.equal(values, gradients[name].cpu()), name
    wanted = sum(float(gradient.double().square().sum()) for gradient in gradients.values()) ** 0.5
    assert norm == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_lies_in_grad_is_what_arrives(dtype: torch.dtype):
    bench = bench_of(large().to(dtype))
    for step in range(6):
        bench.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            backward(bench, step)
        assert_published(bench, step % 2, bench.replica.finish_gradient().norm)
        bench.replica.flip(1 - step % 2)


def test_gradients_that_are_unscaled_while_they_are_copied_arrive_unscaled():
    bench, scaler = bench_of(large()), torch.amp.GradScaler("cuda")
    touched = []
    for step in range(4):
        bench.optimizer.zero_grad()
        torch.manual_seed(step)
        scaler.scale(bench.model(torch.randn(64, 4096, device="cuda")).square().mean()).backward()
        scaler.unscale_(bench.optimizer)
        gradient = bench.replica.finish_gradient()
        touched.append(gradient.touched)
        assert_published(bench, step % 2, gradient.norm)
        bench.replica.flip(1 - step % 2)
        scaler.update()
    assert touched == [False, True, False, False]


@pytest.mark.parametrize("in_place", [True, False])
def test_parameters_and_buffers_come_back(in_place: bool):
    bench = bench_of(large())
    layout = layout_of(spec_of(bench.model, bench.optimizer))
    for _ in range(3):
        bench.replica.await_copies()
        for slot in layout.slots:
            tensor_at(bench.shared, slot.start, slot.spec).normal_()
        bench.read(in_place=in_place)
        for slot in layout.slots:
            assert torch.equal(bench.model.get_parameter(slot.spec.name).cpu(), tensor_at(bench.shared, slot.start, slot.spec))
    bench.replica.store_buffers(0)
    for slot in layout.buffers:
        stored = tensor_at(bench.arena, arena_map(layout).buffers[0] + slot.start, slot.spec)
        assert torch.equal(stored, bench.model.get_buffer(slot.spec.name).cpu())
    bench.replica.check_untouched()


def test_a_group_that_sums_on_the_device_is_brought_gradients_there_and_hears_of_every_change():
    bench = bench_of(large())
    shard = WholeShard(bench.replica._spec, bench.replica.hold(), 0, bench.arena, device=torch.device("cuda", 0))
    gradients = bench.replica.enter_group()
    assert gradients.sum_into(shard.places())
    named = list(bench.model.named_parameters())
    for step in range(2):
        backward(bench, step)
        gradients.bring(0, 1 << 40, 2.0)
        named[0][1].grad.data[0, 0] += 1.0
        gradient = bench.replica.finish_gradient()
        assert gradient.touched
        wanted = sum(float(one.grad.double().square().sum()) for _, one in named) ** 0.5
        assert gradient.norm == pytest.approx(wanted, rel=1e-6)
        gradients.bring(0, 1 << 40, 2.0)
        for (name, one), place in zip(named, shard.places(), strict=True):
            assert torch.equal(place.view(one.shape), 2.0 * one.grad), name
        bench.replica.flip(0, keep=True)
        bench.optimizer.zero_grad()


def test_memory_that_cannot_be_locked_is_copied_all_the_same():
    device = torch.device("cuda", 0)
    memory = torch.arange(0, 200, dtype=torch.uint8)
    once, again = Beside(device, [memory]), Beside(device, [memory])  # CUDA refuses to lock it twice
    there = torch.zeros(200, dtype=torch.uint8, device=device)
    again.send([(there, memory)])
    assert torch.equal(there.cpu(), memory)
    again.release()
    once.release()
