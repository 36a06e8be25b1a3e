"""Gloo all-reduce of 100 MB and a plain SGD apply at every rank. Argument: steps."""

import sys

import torch
import torch.distributed as dist

from workload import report, timed

NUMBERS = 25_000_000
torch.set_num_threads(1)
dist.init_process_group("gloo")
parameter = torch.zeros(NUMBERS)
gradient = torch.full((NUMBERS,), 1e-3)
world = dist.get_world_size()


def step() -> None:
    dist.all_reduce(gradient)
    gradient.mul_(1.0 / world)
    parameter.add_(gradient, alpha=-0.01)


report(timed(step, int(sys.argv[1])))
dist.destroy_process_group()
