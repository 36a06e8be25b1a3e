"""Batch shares: each worker's part of a cut batch, moved towards its measured speed, and cut into whole samples.

Speeds are measured with noise and change, so parts are damped: they move half of the way, a part that turns back halves
all moves, and what would shorten a step by less than 5 % is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping

MOST_STEP = 0.5
"""How much of the way to its goal a part moves at once, at most and at first."""
LEAST_STEP = 1 / 16
DEADBAND = 0.05
"""Parts stay while the slowest worker's step takes at most so much longer than with the best parts."""
LEAST_PART = 0.25
"""No part is below this times an even one, so that every worker is still measured."""


def next_parts(
    seconds_per_sample: dict[int, float], parts: dict[int, float], step: float, before: Mapping[int, float] | None = None
) -> tuple[dict[int, float], float]:
    """The parts to use next and the step of the next call; `parts` itself when nothing is to move.

    Every worker that is measured gets a part; they add up to 1. One that had none is taken as even. `before` are the
    parts as they were ahead of the last move (None: nothing has moved yet): a worker that would go back the way it came
    halves `step`; while all go on the same way it doubles again, up to MOST_STEP. A worker's seconds per sample may depend
    on its part (a fixed cost a step): the goal then moves too, towards parts with which all steps last equally long.

    >>> next_parts({0: 0.1, 1: 0.3}, {0: 0.5, 1: 0.5}, MOST_STEP)
    ({0: 0.625, 1: 0.375}, 0.5)
    >>> next_parts({0: 0.1, 1: 0.102}, {0: 0.5, 1: 0.5}, MOST_STEP)
    ({0: 0.5, 1: 0.5}, 0.5)
    """
    num_workers = len(seconds_per_sample)
    even = sum(parts.values()) / len(parts) if parts else 1.0
    now = _bounded({worker: parts.get(worker, even) for worker in seconds_per_sample})
    goal = _bounded({worker: 1.0 / max(seconds, 1e-12) for worker, seconds in seconds_per_sample.items()})
    if not num_workers or max(now[worker] / goal[worker] for worker in now) <= 1.0 + DEADBAND:
        return (parts if parts.keys() == now.keys() else now), step
    if before is not None:
        turned = any(_turns_back(now[worker], goal[worker], parts.get(worker), before.get(worker)) for worker in now)
        step = max(LEAST_STEP, step / 2) if turned else min(MOST_STEP, step * 2)
    return {worker: part + step * (goal[worker] - part) for worker, part in now.items()}, step


def _turns_back(now: float, goal: float, part: float | None, before: float | None) -> bool:
    """Whether a part would go against its last move, by more than the deadband."""
    if part is None or before is None or abs(goal - now) <= DEADBAND * now:
        return False
    return (goal - now) * (part - before) < 0.0


def _bounded(weights: dict[int, float]) -> dict[int, float]:
    """Parts in proportion to `weights` that add up to 1, none below LEAST_PART of an even one."""
    parts, least = {}, LEAST_PART / max(1, len(weights))
    left, rest = 1.0, sum(weights.values())
    for worker in sorted(weights, key=lambda worker: weights[worker]):
        parts[worker] = max(least, left * weights[worker] / rest) if rest > 0.0 else left
        left -= parts[worker]
        rest -= weights[worker]
    return {worker: parts[worker] for worker in weights}


def pieces(num_samples: int, parts: Mapping[int, float]) -> dict[int, int]:
    """`num_samples` in whole pieces that add up to it: each within a sample of its part, as far as that leaves 1 for each.

    What does not go even is given to those who lack most, the lower worker first. With fewer samples than workers the
    last ones get none.

    >>> pieces(10, {0: 1.0, 1: 1.0, 2: 1.0}), pieces(8, {0: 0.05, 1: 0.7, 2: 0.25})
    ({0: 4, 1: 3, 2: 3}, {0: 1, 1: 5, 2: 2})
    """
    if num_samples < len(parts):
        return dict.fromkeys(sorted(parts)[:num_samples], 1)
    total = sum(parts.values())
    quotas = {worker: num_samples * part / total for worker, part in parts.items()}
    sizes = {worker: max(1, int(quota)) for worker, quota in quotas.items()}
    missing = num_samples - sum(sizes.values())
    for worker in sorted(quotas, key=lambda worker: (sizes[worker] - quotas[worker], worker))[: max(0, missing)]:
        sizes[worker] += 1
    for _ in range(-missing):
        sizes[max(sizes, key=lambda worker: sizes[worker])] -= 1
    return sizes
