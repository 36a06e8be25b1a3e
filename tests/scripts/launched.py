"""Trains under any engine: BatchNorm, a frozen layer, clipping, a state loaded in mid-run. Arguments: how to end, seconds a step."""

import os
import sys
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import paceline

how, pause_s = sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5), nn.Linear(5, 5))
for parameter in model[4].parameters():
    parameter.requires_grad_(False)
optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.05, momentum=0.9)
generator = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(400, 20, generator=generator), torch.randint(0, 5, (400,), generator=generator))

run = paceline.init()
if how == "early":
    sys.exit()
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=10))
for epoch in run.epochs(2):
    for x, y in loader:
        time.sleep(pause_s)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        run.clip_grad_norm_(0.5)
        optimizer.step()
        run.log(loss=loss)
        if how == "raise" and run.worker == 1 and epoch:
            raise ValueError("on purpose")
    if how == "states" and epoch == 0:
        state, moments = model.state_dict(), optimizer.state_dict()
        model.load_state_dict({name: value + name.startswith("4.") for name, value in state.items()})
        optimizer.load_state_dict(moments)
    run.pull()
print(f"rank {os.environ.get('RANK')} has {float(model[4].weight.detach().sum()):.6f} {float(model[1].running_mean.sum()):.6f}", flush=True)
