"""Models, data and optimizers that the parity scripts share, so that all contenders train the same thing."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

STEPS = 20
BATCH = 24

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3, "fused": True}),
    "adam": (torch.optim.Adam, {"lr": 0.003, "fused": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.003, "weight_decay": 0.05, "fused": True}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.02, "fused": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.001, "momentum": 0.5}),
}


def model_of(name: str) -> nn.Module:
    """The MLP 20-33-5 or a small CNN on 1 x 12 x 12."""
    torch.manual_seed(0)
    if name == "mlp":
        return nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, 5))
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12 * 9, 5),
    )


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """One of OPTIMIZERS, weight decay off for biases where there is some (two groups)."""
    kind, settings = OPTIMIZERS[name]
    if "weight_decay" not in settings:
        return kind(model.parameters(), **settings)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return kind([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], **settings)


def data_of(name: str) -> TensorDataset:
    """STEPS batches of BATCH samples with labels."""
    generator = torch.Generator().manual_seed(1)
    shape = (20,) if name == "mlp" else (1, 12, 12)
    inputs = torch.randn(STEPS * BATCH, *shape, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 5, (STEPS * BATCH,), generator=generator))
