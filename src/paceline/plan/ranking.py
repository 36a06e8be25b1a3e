"""From pilots to times: how many samples each pace needs for the target, how sure that is, and who comes first.

A run that met the target gives the shape of learning; a pilot that stopped earlier says how many more samples (or
fewer) its pace needs for the same values, and the shape stretched by that tells when it would be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, sqrt
from statistics import fmean, stdev

import msgspec

from paceline.plan.progress import Crossing, Point, crossing
from paceline.plan.target import Target

LEAST_ERROR = 0.05
"""Of every time that one seed tells: in small trainings the times of other seeds deviate by 4 to 10 % in the mean."""
STRETCH_ERROR = 0.2
"""Of a time that only a pilot tells, growing with the root of how much of it is still to come: measured in small trainings,
whose stretch seldom stays what it was at first.
"""
GUESS_ERROR = 0.5
"""Of a stretch that no two values tell."""


class Need(msgspec.Struct, frozen=True):
    """The samples until the target is met, from `low` to `high`; `is_seen` when a run here met it."""

    samples: float
    low: float
    high: float
    is_seen: bool


class Arrival(msgspec.Struct, frozen=True):
    """The same as a time. `is_planned` is false when the script ends before it."""

    samples: float
    time_s: float
    low_s: float
    high_s: float
    is_seen: bool
    is_planned: bool


def seen(crossed: Crossing) -> Need:
    """What a run that met the target needed."""
    error = max(LEAST_ERROR * crossed.samples, crossed.error)
    return Need(crossed.samples, max(0.0, crossed.samples - error), crossed.samples + error, is_seen=True)


def stretched(points: Sequence[Point], shape: Sequence[Point], target: Target) -> Need | None:
    """What a run needs that only came to `points`, when the one of `shape` met the target; None when nothing can be said.

    The mean over the later half of the values of how many times the samples it needed, by how far the shape came for as
    good a value.
    """
    whole = crossing(shape, target)
    pairs = [(point.samples, one.samples) for point in points if (one := _as_good(shape, point.value, target)) is not None]
    ratios = [samples / other for samples, other in pairs if other > 0.0]
    if whole is None or not ratios:
        return None
    late = ratios[len(ratios) // 2 :]
    ratio = fmean(late)
    scatter = sqrt(fmean((one - ratio) ** 2 for one in late)) / ratio if len(late) > 1 else GUESS_ERROR
    reach = points[-1].samples / (ratio * whole.samples)
    own = whole.error / max(1.0, whole.samples)
    error = min(0.9, hypot(own, max(STRETCH_ERROR, scatter) * max(1.0, sqrt(1.0 / max(0.01, reach)))))
    samples = max(ratio * whole.samples, points[-1].samples)
    return Need(samples, max(points[-1].samples, samples * (1 - error)), samples * (1 + error), is_seen=False)


def _as_good(shape: Sequence[Point], value: float, target: Target) -> Crossing | None:
    """Where the shape came to this value; None beyond its ends, where nothing can be compared."""
    wanted = Target(target.metric, value, target.rising)
    if wanted.is_met(shape[0].value):
        return None
    return crossing(shape, wanted)


def mean_arrival(arrivals: Sequence[Arrival | None]) -> Arrival | None:
    """The mean of some seeds, None when one never arrived. The more seeds, the surer; never surer than their scatter.

    >>> mean_arrival([Arrival(0.0, t, t - 1.0, t + 1.0, True, True) for t in (9.0, 11.0, 10.0, 10.0)]).low_s
    9.5
    """
    every = [one for one in arrivals if one is not None]
    if len(every) < len(arrivals):
        return None
    if len(every) == 1:
        return every[0]
    time_s, low_s, high_s = (fmean(getattr(one, name) for one in every) for name in ("time_s", "low_s", "high_s"))
    deviation_s = stdev(one.time_s for one in every)
    below_s, above_s = (max(width_s, deviation_s) / sqrt(len(every)) for width_s in (time_s - low_s, high_s - time_s))
    is_seen, is_planned = (all(getattr(one, name) for one in every) for name in ("is_seen", "is_planned"))
    return Arrival(fmean(one.samples for one in every), time_s, time_s - below_s, time_s + above_s, is_seen, is_planned)


def are_alike(one: Arrival | None, other: Arrival | None) -> bool:
    """Whether neither is surely better."""
    return not _is_surely_better(one, other) and not _is_surely_better(other, one)


def ranks(arrivals: Sequence[Arrival | None]) -> list[int]:
    """Places from 1 on: one more than how many are surely better. Who cannot be told apart is so in a place with others.

    Those that the script's own length suffices for come before those that would need more, and None is last.

    >>> one = Arrival(0.0, 10.0, 9.0, 11.0, True, True)
    >>> ranks([Arrival(0.0, 20.0, 19.0, 21.0, True, True), one, Arrival(0.0, 10.5, 10.0, 11.0, True, True)])
    [3, 1, 1]
    """
    return [1 + sum(_is_surely_better(other, one) for other in arrivals) for one in arrivals]


def _is_surely_better(one: Arrival | None, other: Arrival | None) -> bool:
    if one is None or other is None:
        return one is not None
    if one.is_planned is not other.is_planned:
        return one.is_planned
    return one.high_s < other.low_s
