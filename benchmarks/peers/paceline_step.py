"""The same step under `paceline run`. Arguments: size, steps[, device]."""

import sys

import torch
from torch.nn.functional import mse_loss

import paceline
from workload import batch, mlp, place, report, timed

size, num_steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
run = paceline.init()
device = place(sys.argv[3] if len(sys.argv) > 3 else "cpu", run.worker)
model = mlp(size).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer = run.prepare(model, optimizer)
x, y = (part.to(device) for part in batch(size))


def step() -> None:
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()


times = timed(step, num_steps, device)
if run.worker == 0:
    report(times)
