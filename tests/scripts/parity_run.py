"""The same under `paceline run`. Arguments: model, optimizer."""

import sys

import torch
from parity_parts import BATCH, data_of, model_of, optimizer_of
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import paceline

torch.set_num_threads(1)
run = paceline.init()
model = model_of(sys.argv[1])
optimizer = optimizer_of(sys.argv[2], model)
loader = DataLoader(data_of(sys.argv[1]), batch_size=BATCH // run.num_workers)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for _ in run.epochs(1):
    for x, y in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss=loss.detach())
