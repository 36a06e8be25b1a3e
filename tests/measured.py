"""Signals of a made-up run, for tests of what reads them."""

from __future__ import annotations

import random

from paceline.logic.meters import mean
from paceline.logic.policies.rates import Crew
from paceline.logic.signals import Signals, WorkerSignals


def workers(times: list[tuple[float, ...]], **fields) -> tuple[WorkerSignals, ...]:
    """A worker for each row of step times."""
    even = {
        "gate_s": 0.0,
        "exchange_s": 0.0,
        "step_samples": 16.0,
        "part": 1.0 / max(1, len(times)),
        "lead": 0,
        "num_steps": 100,
    } | fields
    return tuple(WorkerSignals(id=number, **(even | {"compute_s": mean(own), "steps_s": own})) for number, own in enumerate(times))


def signals(pace: str = "sync", *, times: list[tuple[float, ...]] | None = None, num_workers: int = 4, **fields) -> Signals:
    """A run half through, of even workers unless `times` are given."""
    times = [(0.1,) * 32] * num_workers if times is None else times
    usual = {"version": 100, "samples": 6400, "share": 0.5, "updates_left": 100.0, "num_at_start": len(times), "scales_gradients": True}
    return Signals(pace=pace, **(usual | {"num_workers": len(times), "workers": workers(times)} | fields))


def noisy(num_workers: int, *, seed: int, spread: float, slow: float = 1.0) -> list[tuple[float, ...]]:
    """Step times around 0.1 s, the last worker `slow` times as slow."""
    draw = random.Random(seed)
    means = [0.1 * (slow if number == num_workers - 1 else 1.0) for number in range(num_workers)]
    return [tuple(own * draw.lognormvariate(0.0, spread) for _ in range(32)) for own in means]


def exponential_crew(num_workers: int, *, num_steps: int = 400, num_rounds: int = 2000) -> Crew:
    """Workers whose steps take Exp(1), one sample each."""
    draw = random.Random(1)
    times = [tuple(draw.expovariate(1.0) for _ in range(num_steps)) for _ in range(num_workers)]
    return Crew(signals(times=times, workers=workers(times, step_samples=1.0)), num_rounds)
