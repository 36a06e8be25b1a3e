"""The training step that every contender runs: an MLP of three square layers, AdamW, one thread a process.

On the CPU, or on the device that a peer is told.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import nn

WIDTHS = {"25m": 2884, "1m": 576, "tiny": 16}
BATCH = 32
WARM_UP = 5
CPU = torch.device("cpu")


def mlp(size: str) -> nn.Module:
    """Three linear layers of WIDTHS[size]: 24.96 M or 0.997 M parameters (or 816, to rehearse)."""
    torch.manual_seed(0)
    width = WIDTHS[size]
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def batch(size: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One fixed batch; data loading is not what is measured."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, WIDTHS[size], generator=generator), torch.randn(BATCH, WIDTHS[size], generator=generator)


def timed(step: Callable[[], None], num_steps: int, device: torch.device = CPU) -> list[float]:
    """Milliseconds of each of `num_steps` steps, after a warm-up; a step is over when `device` has nothing left to do."""
    for _ in range(WARM_UP):
        step()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    times: list[float] = []
    for _ in range(num_steps):
        start = time.perf_counter()
        step()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        times.append(1e3 * (time.perf_counter() - start))
    return times


def place(name: str, worker: int) -> torch.device:
    """The device that worker `worker` uses when all were told `name`: of several, each takes the next."""
    device = torch.device(name)
    if device.type == "cpu" or device.index is not None:
        return device
    return torch.device(device.type, worker % torch.accelerator.device_count())


def report(times: list[float]) -> None:
    """Leave the median where the launcher looks for it (first process only)."""
    if int(os.environ.get("RANK", os.environ.get("BENCH_RANK", "0"))) == 0:
        Path(os.environ["BENCH_OUT"]).write_text(json.dumps({"ms": median(times), "all_ms": times}))
