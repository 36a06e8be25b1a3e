"""Trains slowly until a file is there, then as fast as it can; the workers meet at each epoch's end. Arguments: the file, epochs."""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1), nn.Linear(1, 1))
for parameter in model[3].parameters():
    parameter.requires_grad_(False)
optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(200, 8), torch.randn(200, 1))

run = paceline.init()
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=10))
run.mean(1.0)
for epoch in run.epochs(int(sys.argv[2])):
    for x, y in loader:
        time.sleep(0.0 if os.path.exists(sys.argv[1]) else 0.15)
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
    if epoch == 0:
        model.load_state_dict({name: value + name.startswith("3.") for name, value in model.state_dict().items()})
    mean = run.mean(float(epoch))
    assert mean == epoch, f"the others are in another epoch than {epoch}: {mean}"
run.pull()
print(f"at the end {[round(float(one.detach().double().sum()), 6) for one in model.state_dict().values()]}", flush=True)
