"""A sync step on two hosts, by Paceline or by DDP, timed. Arguments: ours or ddp, steps. Prints the median milliseconds and the bytes."""

import sys
import time
from statistics import median

import torch
from torch import nn
from torch.nn.functional import mse_loss

WIDTH = 600
kind, num_steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
size_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
if kind == "ours":
    import paceline

    run = paceline.init()
    model, optimizer = run.prepare(model, optimizer)
    is_first = run.worker == 0
else:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
times = []
for _ in range(num_steps + 2):
    start_s = time.perf_counter()
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
    times.append(1e3 * (time.perf_counter() - start_s))
if is_first:
    print("median", median(times[2:]), size_bytes, flush=True)
if kind == "ddp":
    dist.destroy_process_group()
