"""A few epochs of SGD with momentum on batches in order, for plain `python` and for `paceline run`. Arguments: device, where to save."""

import sys

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import paceline
from workload import place

torch.set_num_threads(1)
torch.manual_seed(0)
run = paceline.init()
device = place(sys.argv[1], run.worker)
model = nn.Sequential(nn.Linear(64, 256), nn.GroupNorm(8, 256), nn.Tanh(), nn.Linear(256, 8)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(512, 64)
loader = DataLoader(TensorDataset(x, x[:, :8].sin()), batch_size=32)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for _epoch in run.epochs(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        mse_loss(model(inputs.to(device)), targets.to(device)).backward()
        run.clip_grad_norm_(1.0)
        optimizer.step()
saved = {name: values.cpu() for name, values in model.state_dict().items()}
if run.worker == 0:
    torch.save(saved, sys.argv[2])
