"""Push 100 MB, apply SGD, pull 100 MB over torch.distributed.rpc: rank 0 pushes, rank 1 serves. Argument: steps."""

import os
import sys

import torch
import torch.distributed.rpc as rpc

from workload import report, timed

NUMBERS = 25_000_000
torch.set_num_threads(1)
parameter = torch.zeros(NUMBERS)


def push(gradient: torch.Tensor) -> torch.Tensor:
    """Apply a gradient, return the parameters."""
    parameter.add_(gradient, alpha=-0.01)
    return parameter


rank = int(os.environ["RANK"])
rpc.init_rpc(f"peer{rank}", rank=rank, world_size=2)
if rank == 0:
    gradient = torch.full((NUMBERS,), 1e-3)
    mine = torch.empty(NUMBERS)

    def step() -> None:
        mine.copy_(rpc.rpc_sync("peer1", push, args=(gradient,)))

    report(timed(step, int(sys.argv[1])))
rpc.shutdown()
