"""Forward and backward alone, as many processes beside each other as workers. Arguments: size, steps."""

import sys

import torch
from torch.nn.functional import mse_loss

from workload import batch, mlp, report, timed

size, num_steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
model = mlp(size)
x, y = batch(size)


def step() -> None:
    model.zero_grad()
    mse_loss(model(x), y).backward()


report(timed(step, num_steps))
