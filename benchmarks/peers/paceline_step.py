"""The same step under `paceline run`. Arguments: size, steps."""

import sys

import torch
from torch.nn.functional import mse_loss

import paceline
from workload import batch, mlp, report, timed

size, num_steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
run = paceline.init()
model = mlp(size)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer = run.prepare(model, optimizer)
x, y = batch(size)


def step() -> None:
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()


times = timed(step, num_steps)
if run.worker == 0:
    report(times)
