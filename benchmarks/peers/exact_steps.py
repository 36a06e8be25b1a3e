"""Steps of SGD that must be exactly what each worker's gradient says. Arguments: size, steps, device, plain|scaled.

The only worker, in lockstep: after each step the parameters on the device are held against what they were and the
gradient that lay in `.grad`, both as the device had them. A copy that begins too early, ends too late or is torn shows.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch.nn.functional import mse_loss

import paceline
from workload import batch, mlp, place

RATE = 0.5
"""A power of two: no product is rounded, so that every device computes the same."""

size, num_steps, is_scaled = sys.argv[1], int(sys.argv[2]), sys.argv[4] == "scaled"
torch.set_num_threads(1)
run = paceline.init()
device = place(sys.argv[3], run.worker)
model = mlp(size).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
scaler = torch.amp.GradScaler(device.type, enabled=is_scaled)
model, optimizer = run.prepare(model, optimizer)
x, y = (part.to(device) for part in batch(size))
worst = 0.0
for number in range(num_steps):
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    scaler.scale(mse_loss(model(x * (1 + number % 3)), y)).backward()
    scaler.unscale_(optimizer)
    gradients = [parameter.grad.detach().clone() for parameter in model.parameters()]
    scaler.step(optimizer)
    scaler.update()
    for parameter, old, gradient in zip(model.parameters(), before, gradients, strict=True):
        wanted = torch.sub(old, gradient, alpha=RATE)
        off = (parameter.detach() - wanted).abs().max() / gradient.abs().max()
        worst = max(worst, off.nan_to_num(nan=float("inf")).item())
saved = model.state_dict()
assert all(value.device == device for value in saved.values()), "state_dict() is not on the device"
model.load_state_dict(saved)
assert all(torch.equal(parameter, saved[name]) for name, parameter in model.named_parameters()), "load_state_dict() changed the parameters"
assert all(parameter.device == device for parameter in model.parameters())
Path(os.environ["BENCH_OUT"]).write_text(json.dumps({"ms": worst}))
