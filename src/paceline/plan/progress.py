"""How a metric went over the samples of a run, thinned where many values say one thing, and when it met a target."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import NamedTuple

import msgspec

from paceline.plan.target import Target

NUM_WINDOWS = 60
"""Of a whole run. A metric that is logged more often than twice in one is noise around a mean, which is taken."""


DEVIATION_OF_MAD = 1.4826
LEAST_THIRDS = 3
SLOPE_OVER = 2


class Logged(NamedTuple):
    """One value of a metric, at so many folded samples and at that time; `weight` is the samples behind it."""

    samples: int
    t_s: float
    value: float
    weight: float


class Point(msgspec.Struct, frozen=True):
    """A metric's value at a place of the run."""

    samples: float
    t_s: float
    value: float


class Crossing(msgspec.Struct, frozen=True):
    """When a target was met, give or take `error` samples: it was between two values, which scatter."""

    samples: float
    t_s: float
    error: float


def points_of(logged: Sequence[Logged], whole: float) -> list[Point]:
    """One point for each value, or for each window of a run of `whole` samples where there are many more.

    >>> points_of([Logged(10, 1.0, 0.5, 1), Logged(20, 2.0, 0.7, 1)], 20.0)
    [Point(samples=10.0, t_s=1.0, value=0.5), Point(samples=20.0, t_s=2.0, value=0.7)]
    """
    width = whole / NUM_WINDOWS
    if not logged or len(logged) <= 2 * (1 + logged[-1].samples / width):
        return [Point(float(one.samples), one.t_s, one.value) for one in logged]
    windows: dict[int, list[Logged]] = {}
    for one in logged:
        windows.setdefault(int((one.samples - 1) // width), []).append(one)
    return [_mean(window) for _, window in sorted(windows.items())]


def _mean(window: Sequence[Logged]) -> Point:
    weight = sum(one.weight for one in window)
    samples, t_s, value = (sum(one[i] * one.weight for one in window) / weight for i in range(3))
    return Point(samples, t_s, value)


def crossing(points: Sequence[Point], target: Target) -> Crossing | None:
    """Where the line through the points first meets the target; None when it does not.

    >>> crossing([Point(0.0, 0.0, 0.0), Point(10.0, 5.0, 1.0)], Target("accuracy", 0.5, rising=True))
    Crossing(samples=5.0, t_s=2.5, error=2.5)
    """
    if points and target.is_met(points[0].value):
        return Crossing(points[0].samples, points[0].t_s, points[0].samples)
    for number, (before, after) in enumerate(pairwise(points)):
        if target.is_met(after.value):
            share = (target.value - before.value) / (after.value - before.value)
            gap = after.samples - before.samples
            error = gap / 4 + scatter(points) / max(1e-12, _slope(points, number))
            return Crossing(before.samples + share * gap, before.t_s + share * (after.t_s - before.t_s), min(error, after.samples))
    return None


def scatter(points: Sequence[Point]) -> float:
    """The deviation of the values around a smooth line: from their third differences, in which a curve hardly shows.

    >>> scatter([Point(float(place), 0.0, 0.01 * place**2) for place in range(9)]) < 1e-12
    True
    """
    thirds = [
        abs(d.value - 3 * c.value + 3 * b.value - a.value) for a, b, c, d in zip(points, points[1:], points[2:], points[3:], strict=False)
    ]
    return DEVIATION_OF_MAD * median(thirds) / sqrt(20.0) if len(thirds) >= LEAST_THIRDS else 0.0


def _slope(points: Sequence[Point], number: int) -> float:
    """How fast the values change around a place, by the sample."""
    first, last = points[max(0, number - SLOPE_OVER)], points[min(len(points) - 1, number + 1 + SLOPE_OVER)]
    return abs(last.value - first.value) / (last.samples - first.samples) if last.samples > first.samples else 0.0


def best(points: Sequence[Point], *, rising: bool) -> float:
    """The best value of all points, of which there is at least one."""
    values = [point.value for point in points]
    return max(values) if rising else min(values)
