"""Running measures that the gauges are made of: noise scale, loss and its trend, rates, warm-up. O(1) a call, O(window) a reading.

Each states its window. None of them knows of workers or paces; what is not finite is left out, and said where it matters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from math import ceil, isfinite, log, sqrt
from typing import NamedTuple

WINDOW_FOLDS = 32
"""Measured updates that the noise scale and an update's length are smoothed over (an exponential window's mean age)."""
LEAST_FOLDS = 8
"""Fewer say nothing about a ratio of two noisy means."""
WINDOW_LINES = 32
"""Logged lines that the loss is smoothed over."""
WINDOW_ROUNDS = 32
"""Rounds (as many gradients, or lines, as there are workers) behind a rate or a slope."""
WARMUP_GAPS = 2.0
"""A learning rate that has not grown for so many of its longest gaps between growths warms up no more."""
FALLEN = 0.95
"""Below this part of its peak a learning rate has fallen; workers' reports of one schedule differ by less."""


def mean(values: Collection[float]) -> float:
    """The mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def wasted(times: Collection[float]) -> float:
    """1 - mean/max: what part of their time workers with steps of these lengths would wait in sync.

    >>> wasted([1.0, 1.0, 1.0, 4.0])
    0.5625
    """
    return 1.0 - mean(times) / max(times) if times and max(times) > 0.0 else 0.0


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that a `part` of them does not exceed, 0 of nothing.

    >>> quantile([0, 1, 1, 5], 0.5), quantile([0, 1, 1, 5], 0.95)
    (1.0, 5.0)
    """
    return float(ordered[max(0, ceil(part * len(ordered)) - 1)]) if ordered else 0.0


class Smoothed:
    """An exponential mean over about `window` values, with weights; without bias from its start.

    >>> smoothed = Smoothed(4)
    >>> smoothed.add(2.0), smoothed.add(2.0)
    (None, None)
    >>> smoothed.mean
    2.0
    """

    def __init__(self, window: int) -> None:
        self._keep = 1.0 - 1.0 / window
        self._sum = self._weight = 0.0
        self.count = 0

    def add(self, value: float, weight: float = 1.0) -> None:
        """One more value."""
        self._sum = self._sum * self._keep + value * weight
        self._weight = self._weight * self._keep + weight
        self.count += 1

    @property
    def mean(self) -> float | None:
        """The mean, None before the first value."""
        return self._sum / self._weight if self._weight > 0.0 else None


class NoiseScale:
    """tr(S)/|G|^2 in samples, from gradients of one version: G the true gradient, S the covariance of one sample's.

    A gradient of n samples has E|g|^2 = |G|^2 + tr(S)/n, their mean by samples |G|^2 + tr(S)/sum n. Two equations, two
    unknowns; each is smoothed by itself, because a ratio of single estimates is biased (McCandlish et al. 2018, appendix A).

    >>> scale = NoiseScale()
    >>> for _ in range(8):  # |G|^2 = 1, tr(S) = 20
    ...     _ = scale.add([(10, 3.0**0.5), (5, 5.0**0.5)], 1.0 + 20 / 15)
    >>> round(scale.value, 6)
    20.0
    """

    def __init__(self) -> None:
        self._trace = Smoothed(WINDOW_FOLDS)
        self._square = Smoothed(WINDOW_FOLDS)

    def add(self, members: Sequence[tuple[int, float]], folded: float) -> bool:
        """`members` as (samples, 2-norm) and the squared norm of their mean by samples; returns whether that said something."""
        members = [(samples, norm) for samples, norm in members if samples > 0]
        if len(members) < 2:
            return False
        total = sum(samples for samples, _ in members)
        single = sum(norm * norm for _, norm in members) / len(members)
        if not isfinite(single + folded):
            return False
        inverse = sum(1.0 / samples for samples, _ in members) / len(members)
        trace = (single - folded) / (inverse - 1.0 / total)
        self._trace.add(trace)
        self._square.add(folded - trace / total)
        return True

    @property
    def value(self) -> float | None:
        """The noise scale; None while too little is known, and where the noise drowns the gradient."""
        trace, square = self._trace.mean, self._square.mean
        if trace is None or square is None or self._square.count < LEAST_FOLDS or square <= 0.0:
            return None
        return max(0.0, trace / square)


class Slope(NamedTuple):
    """A straight line's slope and its standard error."""

    value: float
    error: float


def line_slope(points: Sequence[tuple[float, float]]) -> Slope:
    """Least squares through (x, y); 0 with error 0 for fewer than three points.

    >>> line_slope([(0, 1), (1, 3), (2, 5)])
    Slope(value=2.0, error=0.0)
    """
    count = len(points)
    if count < 3:
        return Slope(0.0, 0.0)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0.0:
        return Slope(0.0, 0.0)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return Slope(slope, sqrt(rest / (count - 2) / spread))


class Loss:
    """The training loss, weighted by samples: smoothed, of the first round, and d(log loss) per 1,000 samples.

    `value` is nan once as many lines in a row as there are workers, two at least, were not finite.
    """

    def __init__(self) -> None:
        self._smoothed = Smoothed(WINDOW_LINES)
        self._points: deque[tuple[float, float]] = deque(maxlen=WINDOW_ROUNDS)
        self._sum = self._weight = 0.0
        self._lines = self._bad_in_a_row = 0
        self._is_bad = False
        self.first: float | None = None

    def add(self, loss: float, weight: int, samples: float, num_workers: int) -> None:
        """A logged line of `weight` samples, at `samples` of the sample clock."""
        if not isfinite(loss):
            self._bad_in_a_row += 1
            self._is_bad = self._bad_in_a_row >= max(2, num_workers)
            return
        self._bad_in_a_row, self._is_bad = 0, False
        heavy = float(max(1, weight))
        self._smoothed.add(loss, heavy)
        self._sum += loss * heavy
        self._weight += heavy
        self._lines += 1
        if self._lines >= num_workers:
            mean = self._sum / self._weight
            self.first = mean if self.first is None else self.first
            self._points.append((samples / 1000.0, mean))
            self._sum = self._weight = 0.0
            self._lines = 0

    @property
    def value(self) -> float | None:
        """The smoothed loss."""
        return float("nan") if self._is_bad else self._smoothed.mean

    @property
    def slope(self) -> Slope:
        """Of log loss over the last rounds; 0 for a loss that is not positive, which has no logarithm."""
        if any(loss <= 0.0 for _, loss in self._points):
            return Slope(0.0, 0.0)
        return line_slope([(at, log(loss)) for at, loss in self._points])

    def begin_anew(self) -> None:
        """A change of pace: no trend goes across it, the level does."""
        self._points.clear()
        self._sum = self._weight = 0.0
        self._lines = 0


class Mark(NamedTuple):
    """The counts at one moment."""

    now_s: float
    samples: int
    gradients: int
    updates: int


class Rate(NamedTuple):
    """What came a second, 0 while less than a round did, and how many samples an update had."""

    samples_per_s: float = 0.0
    gradients_per_s: float = 0.0
    updates_per_s: float = 0.0
    samples_per_update: float = 0.0


class Rates:
    """Rates over the last WINDOW_ROUNDS rounds, pauses left out; a round has as many gradients as workers.

    >>> rates = Rates()
    >>> for now_s in (1.0, 1.5, 2.0):
    ...     rates.add(32, 4, now_s, 4)
    >>> rates.resumed(9.0)
    >>> rates.add(32, 4, 9.5, 4)
    >>> rates.read().samples_per_s
    64.0
    """

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque(maxlen=WINDOW_ROUNDS + 1)
        self._samples = self._gradients = self._updates = 0
        self._last_s = self._paused_s = 0.0

    def add(self, samples: int, gradients: int, now_s: float, num_workers: int) -> None:
        """An update was made."""
        self._samples += samples
        self._gradients += gradients
        self._updates += 1
        self._last_s = now_s
        if not self._marks or self._gradients - self._marks[-1].gradients >= num_workers:
            self._marks.append(Mark(now_s - self._paused_s, self._samples, self._gradients, self._updates))

    def resumed(self, now_s: float) -> None:
        """Nothing was to be done since the last update."""
        if self._updates:
            self._paused_s += now_s - self._last_s
            self._last_s = now_s

    def read(self) -> Rate:
        """The rates now."""
        if len(self._marks) < 2 or self._marks[-1].now_s <= self._marks[0].now_s:
            return Rate()
        first, last = self._marks[0], self._marks[-1]
        seconds, samples, updates = last.now_s - first.now_s, last.samples - first.samples, last.updates - first.updates
        return Rate(samples / seconds, (last.gradients - first.gradients) / seconds, updates / seconds, samples / updates)

    def begin_anew(self) -> None:
        """A change of pace: no rate goes across it."""
        self._marks.clear()


class Warmup:
    """Whether the learning rate warms up: it has only grown so far, and grew lately as its own rhythm goes.

    >>> warmup = Warmup()
    >>> for samples, rate in ((0, 0.1), (100, 0.2), (200, 0.3)):
    ...     warmup.add(rate, samples)
    >>> warmup.holds(300), warmup.holds(401)
    (True, False)
    """

    def __init__(self) -> None:
        self._peak: float | None = None
        self._grown_at = self._longest_gap = 0
        self._has_grown = self._has_fallen = False

    def add(self, rate: float, samples: int) -> None:
        """The script's learning rate at `samples` of the sample clock."""
        if not isfinite(rate):
            return
        if self._peak is None:
            self._peak, self._grown_at = rate, samples
        elif rate > self._peak:
            self._longest_gap = max(self._longest_gap, samples - self._grown_at)
            self._peak, self._grown_at, self._has_grown = rate, samples, True
        elif rate < FALLEN * self._peak:
            self._has_fallen = True

    def holds(self, samples: int) -> bool:
        """Whether it still warms up at `samples`."""
        return self._has_grown and not self._has_fallen and samples - self._grown_at <= WARMUP_GAPS * self._longest_gap
