"""How a metric went over the samples of a run, thinned where many values say one thing, and when it met a target."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from paceline.plan.target import Target

NUM_WINDOWS = 60
"""Of a whole run. A metric that is logged more often than twice in one is noise around a mean, which is taken."""


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
    """When a target was met: between two points, `gap` samples apart."""

    samples: float
    t_s: float
    gap: float


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
    Crossing(samples=5.0, t_s=2.5, gap=10.0)
    """
    if points and target.is_met(points[0].value):
        return Crossing(points[0].samples, points[0].t_s, points[0].samples)
    for before, after in pairwise(points):
        if target.is_met(after.value):
            share = (target.value - before.value) / (after.value - before.value)
            gap = after.samples - before.samples
            return Crossing(before.samples + share * gap, before.t_s + share * (after.t_s - before.t_s), gap)
    return None


def best(points: Sequence[Point], *, rising: bool) -> float:
    """The best value of all points, of which there is at least one."""
    values = [point.value for point in points]
    return max(values) if rising else min(values)
