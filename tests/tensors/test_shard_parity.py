"""Shards take the steps that plain torch takes on the joined batch."""

import copy
from functools import partial

import pytest
import torch
from sharded import Job, Matrix, hyper_of
from torch import nn, optim
from torch.nn.functional import cross_entropy, mse_loss

torch.set_num_threads(1)

OPTIMIZERS = {
    "sgd": partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "plain sgd": partial(optim.SGD, lr=0.1),
    "adam": partial(optim.Adam, lr=1e-2, weight_decay=1e-3),
    "adamw": partial(optim.AdamW, lr=1e-2, weight_decay=0.1),
    "amsgrad": partial(optim.AdamW, lr=1e-2, amsgrad=True),
    "adadelta": partial(optim.Adadelta, lr=1.0),
    "adagrad": partial(optim.Adagrad, lr=0.05, initial_accumulator_value=0.1),
    "rmsprop": partial(optim.RMSprop, lr=1e-3, momentum=0.9, centered=True),
    "nadam": partial(optim.NAdam, lr=1e-2),
    "radam": partial(optim.RAdam, lr=1e-2),
    "adamax": partial(optim.Adamax, lr=1e-2),
    "asgd": partial(optim.ASGD, lr=0.05),
    "adafactor": partial(optim.Adafactor, lr=1e-2),
    "matrix": Matrix,
}
FUSED = {"sgd", "plain sgd", "adam", "adamw", "amsgrad", "adagrad"}


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, 5))


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 5))


def batches(model: nn.Module, count: int = 20, size: int = 24) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    shape = (size, 20) if isinstance(model[0], nn.Linear) else (size, 1, 8, 8)
    return [(torch.randn(shape), torch.randint(0, 5, (size,))) for _ in range(count)]


def loss_on(x: torch.Tensor, y: torch.Tensor):
    return lambda model: cross_entropy(model(x), y)


def groups_of(model: nn.Module) -> list[dict]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    return [{"params": matrices}, {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 0.02}]


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
