"""Gradients that depend on nothing but the parameters read, the worker and its step; later workers are slower. Arguments: optimizer."""

import sys
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

SIZES = (300, 41)
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
}


def model_of() -> nn.ParameterList:
    """The parameters as they begin."""
    generator = torch.Generator().manual_seed(0)
    return nn.ParameterList([nn.Parameter(torch.randn(size, generator=generator)) for size in SIZES])


def loss_of(values: list[Tensor], worker: int, step: int) -> Tensor:
    """A noisy quadratic."""
    generator = torch.Generator().manual_seed(1000 * worker + step)
    terms = [0.1 * (w * w).sum() + (0.3 * torch.randn(w.shape, generator=generator) * w).sum() for w in values]
    return terms[0] + terms[1]


def main() -> None:
    torch.set_num_threads(1)
    run = paceline.init()
    model = model_of()
    optimizer = OPTIMIZERS[sys.argv[1]](model.parameters())
    loader = DataLoader(TensorDataset(torch.arange(60)), batch_size=1)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    step = 0
    for _ in run.epochs(1):
        for _ in loader:
            optimizer.zero_grad()
            loss_of(list(model), run.worker, step).backward()
            time.sleep(0.004 * (1 + run.worker))
            optimizer.step()
            step += 1


if __name__ == "__main__":
    main()
