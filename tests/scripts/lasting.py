"""Trains slowly until a file is there, then as fast as it can. Arguments: the file, epochs."""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(200, 8), torch.randn(200, 1))

run = paceline.init()
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=10))
for _ in run.epochs(int(sys.argv[2])):
    for x, y in loader:
        time.sleep(0.0 if os.path.exists(sys.argv[1]) else 0.05)
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
print(f"worker {run.worker} has {float(model[0].weight.detach().sum()):.6f}", flush=True)
