"""A series over wall time and samples: smoothed, and thinned to what a screen can show without hiding its extremes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_SMOOTHED_FROM = 60
_WINDOW_SHARE = 0.03
_BEYOND = 1e100  # no number format trains there; it keeps the arithmetic of an axis finite


class Point(NamedTuple):
    """One or more neighbouring values: where, the smoothed value there, and the least and greatest of them."""

    wall_s: float
    samples: float
    value: float
    low: float
    high: float


class Curve:
    """One metric of a run in the order of time; values that are not finite (or beyond 1e100) are counted and left out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_lost = 0
        self._wall_s, self._samples = array("d"), array("d")
        self._values, self._weights = array("d"), array("d")

    def __len__(self) -> int:
        return len(self._values)

    def add(self, wall_s: float, samples: float, value: float, weight: float = 1.0) -> None:
        """Append one value; `weight` is the number of samples behind it."""
        if not abs(value) < _BEYOND:
            self.num_lost += 1
            return
        self._wall_s.append(wall_s)
        self._samples.append(samples)
        self._values.append(value if abs(value) > 1 / _BEYOND else 0.0)
        self._weights.append(max(weight, 1e-9))

    @property
    def is_smoothed(self) -> bool:
        """Whether there are so many values that a smoothed line says more than all of them."""
        return len(self) >= _SMOOTHED_FROM

    def points(self, most: int) -> list[Point]:
        """At most `most` points: each value by itself, or the extremes and the last smoothed value of equal groups."""
        smoothed = self._smooth() if self.is_smoothed else self._values
        edges = _edges(len(self), most)
        return [
            Point(
                self._wall_s[stop - 1],
                self._samples[stop - 1],
                smoothed[stop - 1],
                min(self._values[start:stop]),
                max(self._values[start:stop]),
            )
            for start, stop in pairwise(edges)
        ]

    def _smooth(self) -> array[float]:
        """The exponential mean over about 3 % of the values, by weight, from the first value on without its bias."""
        share = 1.0 / max(4.0, _WINDOW_SHARE * len(self))
        top = bottom = 0.0
        smoothed = array("d")
        for value, weight in zip(self._values, self._weights, strict=True):
            top += share * (value * weight - top)
            bottom += share * (weight - bottom)
            smoothed.append(top / bottom)
        return smoothed


def _edges(length: int, most: int) -> list[int]:
    groups = min(length, most)
    return [round(length * group / groups) for group in range(groups + 1)] if groups else [0]


def rate_curve(wall_s: Sequence[float], samples: Sequence[float], most: int = 50) -> Curve:
    """Samples a second over equal parts of the time, from the sample clock `samples` at the times `wall_s`."""
    curve = Curve("samples/s")
    if len(wall_s) < 3 or wall_s[-1] <= 0:
        return curve
    parts = min(most, max(1, len(wall_s) // 4))
    width = wall_s[-1] / parts
    before, index = 0.0, 0
    for part in range(1, parts + 1):
        end = wall_s[-1] if part == parts else part * width
        while index < len(wall_s) and wall_s[index] <= end:
            index += 1
        now = samples[index - 1] if index else 0.0
        curve.add((part - 0.5) * width, (before + now) / 2, (now - before) / width)
        before = now
    return curve
