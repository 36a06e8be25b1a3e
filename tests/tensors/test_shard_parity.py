"""Shards take the steps that plain torch takes on the joined batch."""

from functools import partial

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

from sharded import OPTIMIZERS, Job, groups_of, hyper_of, mlp

torch.set_num_threads(1)

FUSED = {"sgd", "plain sgd", "adam", "adamw", "amsgrad", "adagrad"}


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 5))


def batches(model: nn.Module, count: int = 20, size: int = 24) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    shape = (size, 20) if isinstance(model[0], nn.Linear) else (size, 1, 8, 8)
    return [(torch.randn(shape), torch.randint(0, 5, (size,))) for _ in range(count)]


def loss_on(x: torch.Tensor, y: torch.Tensor):
    return lambda model: cross_entropy(model(x), y)


def train(job: Job, model: nn.Module, optimizer: optim.Optimizer, *, num_workers: int, count: int = 20, **settings) -> None:
    """Both ways side by side."""
    for x, y in batches(model, count):
        parts = zip(x.chunk(num_workers), y.chunk(num_workers), strict=True)
        job.update([[g if g is None else g.clone() for g in job.gradients_of(loss_on(*part))] for part in parts], **settings)
        optimizer.zero_grad()
        loss_on(x, y)(model).backward()
        optimizer.step()


@pytest.mark.parametrize(("num_shards", "num_workers"), [(1, 1), (2, 2), (3, 4), (1, 2), (3, 1)])
@pytest.mark.parametrize("build", [mlp, cnn])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_are_those_of_one_process_on_the_joined_batch(name, build, num_shards, num_workers):
    model = build()
    job = Job(model, OPTIMIZERS[name](groups_of(model)), num_shards, num_workers, window_bytes=1024)
    optimizer = OPTIMIZERS[name](groups_of(model), **({"fused": True} if name in FUSED else {}))
    train(job, model, optimizer, num_workers=num_workers)
    assert job.distance(model) < 1e-5


@pytest.mark.parametrize("name", sorted(FUSED))
def test_one_worker_is_bitwise_torch_with_the_same_kernels(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 16))
    job = Job(model, OPTIMIZERS[name](groups_of(model)), num_shards=2, window_bytes=1024)
    train(job, model, OPTIMIZERS[name](groups_of(model), fused=True), num_workers=1)
    assert job.equals(model)


@pytest.mark.parametrize("flags", [{"foreach": True}, {"foreach": False}, {"fused": False}, {"fused": True}])
def test_a_choice_of_kernels_is_the_users(flags):
    model = mlp()
    build = partial(optim.AdamW, lr=0.01, **flags)
    job = Job(model, build(model.parameters()))
    train(job, model, build(model.parameters()), num_workers=1)
    assert job.distance(model) < 1e-6


class Branches(nn.Module):
    """Layers that are used in some steps only, one that never is, a tied pair and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(20, 20)
        self.tied = nn.Linear(20, 20, bias=False)
        self.tied.weight = self.first.weight
        self.sometimes = nn.Linear(20, 20)
        self.late = nn.Linear(20, 20)
        self.never = nn.Linear(3, 3)
        self.frozen = nn.Linear(20, 20)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.last = nn.Linear(20, 5)
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tied(torch.tanh(self.first(x)))
        if self.step % 3 != 1:
            x = torch.tanh(self.sometimes(x))
        if self.step >= 5:
            x = torch.tanh(self.late(x))
        return self.last(torch.tanh(self.frozen(x)))


@pytest.mark.parametrize(("num_shards", "num_workers", "window_bytes"), [(1, 1, 1 << 22), (2, 2, 1024), (3, 1, 512)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_without_a_gradient_is_left_alone_with_its_state(name, num_shards, num_workers, window_bytes):
    model = Branches()
    trained = [p for p in model.parameters() if p.requires_grad]
    job = Job(model, OPTIMIZERS[name](trained), num_shards, num_workers, window_bytes=window_bytes)
    optimizer = OPTIMIZERS[name](trained)
    torch.manual_seed(2)
    for step in range(12):
        x, y = torch.randn(8, 20), torch.randint(0, 5, (8,))
        model.step = job.model.step = step
        parts = zip(x.chunk(num_workers), y.chunk(num_workers), strict=True)
        job.update([[g if g is None else g.clone() for g in job.gradients_of(loss_on(*part))] for part in parts])
        optimizer.zero_grad()
        loss_on(x, y)(model).backward()
        optimizer.step()
    assert job.distance(model) < 1e-5


def test_a_gradient_that_one_worker_lacks_counts_as_zero():
    model = mlp()
    job = Job(model, optim.SGD(model.parameters(), lr=1.0), num_workers=2)
    ones = [torch.ones_like(p) for p in model.parameters()]
    before = {index: view.clone() for index, view in job.views.items()}
    job.update([ones, [None, *ones[1:]]])
    assert torch.allclose(job.views[0], before[0] - 0.5)
    assert torch.allclose(job.views[1], before[1] - 1.0)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "rmsprop"])
def test_bfloat16_is_summed_in_float32(name):
    model = nn.Sequential(mlp(), nn.Linear(5, 5)).float()
    model[0].bfloat16()
    job = Job(model, OPTIMIZERS[name](model.parameters()), 2, 3, window_bytes=512)
    optimizer = OPTIMIZERS[name](model.parameters(), **({"fused": True} if name in FUSED - {"sgd"} else {}))
    torch.manual_seed(3)
    for _ in range(5):
        gradients = [[torch.randn_like(p) for p in model.parameters()] for _ in range(3)]
        for parameter, *parts in zip(model.parameters(), *gradients, strict=True):
            total = parts[0].float() * (1 / 3)
            for part in parts[1:]:
                total.add_(part.float(), alpha=1 / 3)
            parameter.grad = total.to(parameter.dtype)
        job.update(gradients)
        optimizer.step()
    assert job.distance(model) < 1e-3


def test_schedules_reach_every_group():
    model = mlp()
    job = Job(model, optim.AdamW(groups_of(model), lr=0.01), 2, window_bytes=1024)
    optimizer = optim.AdamW(groups_of(model), lr=0.01, fused=True)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, [0.05, 0.02], total_steps=20)
    for x, y in batches(model, 10):
        job.update([job.gradients_of(loss_on(x, y))], hyper=hyper_of(optimizer))
        optimizer.zero_grad()
        loss_on(x, y)(model).backward()
        optimizer.step()
        scheduler.step()
    assert job.distance(model) < 1e-6


def test_an_lr_factor_holds_for_one_update():
    model = mlp()
    job = Job(model, optim.SGD(model.parameters(), lr=0.1), 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, fused=True)
    for factor, (x, y) in zip((1.0, 0.25, 1.0), batches(model, 3), strict=True):
        job.update([job.gradients_of(loss_on(x, y))], lr_factor=factor)
        optimizer.param_groups[0]["lr"] = 0.1 * factor
        optimizer.zero_grad()
        loss_on(x, y)(model).backward()
        optimizer.step()
    assert job.distance(model) < 1e-6


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("name", ["sgd", "adadelta", "matrix"])
def test_clipping_is_that_of_the_folded_gradient(name, num_workers):
    model = mlp()
    job = Job(model, OPTIMIZERS[name](model.parameters()), 3, num_workers, window_bytes=1024)
    optimizer = OPTIMIZERS[name](model.parameters())
    for x, y in batches(model, 8):
        parts = zip(x.chunk(num_workers), y.chunk(num_workers), strict=True)
        job.update([[g.clone() for g in job.gradients_of(loss_on(*part))] for part in parts], clip=0.05)
        optimizer.zero_grad()
        loss_on(x, y)(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    assert job.distance(model) < 1e-5
