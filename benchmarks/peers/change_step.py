"""The training step with a loader, so that shares of the work are known. Arguments: size, steps a worker."""

import sys

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import paceline
from workload import BATCH, batch, mlp

size, num_steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
run = paceline.init()
model = mlp(size)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x, y = batch(size)
loader = DataLoader(TensorDataset(torch.arange(num_steps * run.num_workers * BATCH)), batch_size=BATCH)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for _ in run.epochs(1):
    for _ in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
