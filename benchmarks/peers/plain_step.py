"""The step in plain PyTorch, one process alone, the fused AdamW. Arguments: size, steps, device."""

import sys

import torch
from torch.nn.functional import mse_loss

from workload import batch, mlp, place, report, timed

size, num_steps, device = sys.argv[1], int(sys.argv[2]), place(sys.argv[3], 0)
torch.set_num_threads(1)
model = mlp(size).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
x, y = (part.to(device) for part in batch(size))


def step() -> None:
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()


report(timed(step, num_steps, device))
