"""A sync step on two hosts, by Paceline or by DDP, timed. Arguments: ours or ddp, steps. Prints the median milliseconds and the bytes."""

import sys
import time
from statistics import median

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 870
kind, num_steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
size_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
times: list[float] = []


def step() -> None:
    start_s = time.perf_counter()
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
    times.append(1e3 * (time.perf_counter() - start_s))


if kind == "ours":
    import paceline

    run = paceline.init()
    # the loader keeps both in the same step, and a joiner out of the first one
    data = TensorDataset(torch.arange(2 * num_steps))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=1))
    for _ in run.epochs(1):
        for _ in loader:
            step()
    is_first = run.worker == 0
else:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    for _ in range(num_steps):
        step()
    is_first = dist.get_rank() == 0
    dist.destroy_process_group()
if is_first:
    print("median", median(times[2:]), size_bytes, flush=True)
