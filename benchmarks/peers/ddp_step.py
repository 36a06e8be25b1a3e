"""A DDP training step at its best documented settings: Gloo, NCCL on a device. Arguments: size, steps, fused|default[, device]."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from workload import batch, mlp, place, report, timed

size, num_steps, kernel = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
device = place(sys.argv[4] if len(sys.argv) > 4 else "cpu", int(os.environ["RANK"]))
if device.type != "cpu":
    torch.accelerator.set_device_index(device.index)
dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
model = DistributedDataParallel(mlp(size).to(device), gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=25)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} if kernel == "fused" else {}))
x, y = (part.to(device) for part in batch(size))


def step() -> None:
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()


report(timed(step, num_steps, device))
dist.destroy_process_group()
