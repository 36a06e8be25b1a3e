"""A DDP (Gloo) training step at its best documented settings. Arguments: size, steps, fused|default."""

import sys

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from workload import batch, mlp, report, timed

size, num_steps, kernel = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(mlp(size), gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=25)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} if kernel == "fused" else {}))
x, y = batch(size)


def step() -> None:
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()


report(timed(step, num_steps))
dist.destroy_process_group()
