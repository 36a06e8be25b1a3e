"""The training step that every contender runs: an MLP of three square layers, AdamW, one thread a process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import nn

WIDTHS = {"25m": 2884, "1m": 576}
BATCH = 32
WARM_UP = 5


def mlp(size: str) -> nn.Module:
    """Three linear layers of WIDTHS[size]: 24.96 M or 0.997 M parameters."""
    torch.manual_seed(0)
    width = WIDTHS[size]
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def batch(size: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One fixed batch; data loading is not what is measured."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, WIDTHS[size], generator=generator), torch.randn(BATCH, WIDTHS[size], generator=generator)


def timed(step: Callable[[], None], num_steps: int) -> list[float]:
    """Milliseconds of each of `num_steps` steps, after a warm-up."""
    for _ in range(WARM_UP):
        step()
    times: list[float] = []
    for _ in range(num_steps):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def report(times: list[float]) -> None:
    """Leave the median where the launcher looks for it (first process only)."""
    if int(os.environ.get("RANK", os.environ.get("BENCH_RANK", "0"))) == 0:
        Path(os.environ["BENCH_OUT"]).write_text(json.dumps({"ms": median(times), "all_ms": times}))
