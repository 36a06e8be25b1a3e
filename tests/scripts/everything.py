"""What a script may ask for, in one: BatchNorm, a clipped norm, accumulation, a scheduler, means, states saved and loaded.

Its final model is the same whichever way the updates were made.
"""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

torch.manual_seed(1)
run = paceline.init()
model = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))
model[3].bias.requires_grad_(False)
optimizer = torch.optim.AdamW(
    [{"params": model[0].parameters()}, {"params": [*model[1].parameters(), model[3].weight], "lr": 0.02}], lr=0.01
)
data = torch.randn(96, 6)
loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.5)
model, optimizer, loader, scheduler = run.prepare(model, optimizer, loader, scheduler)
kept = None
for epoch in run.epochs(3):
    for number, (x, y) in enumerate(loader):
        loss = (model(x) - y).square().mean()
        loss.backward()
        if number % 2:
            run.clip_grad_norm_(0.5)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    if epoch == 0:
        kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    if epoch == 1 and kept is not None:
        model.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
    run.log(loss=run.mean(loss.detach()))
