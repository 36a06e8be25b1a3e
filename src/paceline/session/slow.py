"""What makes a worker slower than its machine: `--slow` and `--compute recorded:FILE`. Arithmetic only, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.settings import Slow

STRIDE = 7919
"""A prime: workers read a recorded file from places far apart."""


class Handicap:
    """How long a worker sleeps in each step, so that the step lasts as long as it is told to."""

    def __init__(self, worker: int, slow: Sequence[Slow] = (), recorded_s: Sequence[float] = ()) -> None:
        self._slow = [one for one in slow if one.worker == worker]
        self._recorded_s = recorded_s
        self._first = worker * STRIDE
        self.num_overrun = 0
        self.overrun_s = 0.0

    def factor(self, share: float) -> float:
        """How many times as long a step takes at this share of the run's work."""
        return next((one.factor for one in self._slow if one.start <= share <= one.stop), 1.0)

    def pause_s(self, step: int, share: float, *, cpu_s: float, compute_s: float, part: float = 1.0) -> float:
        """The sleep after a step whose compute took `cpu_s` of processor and `compute_s` of wall time.

        Processor time is stretched, so that crowded cores do not change the factor; a recorded time is kept to. It is for
        an even part of a batch: where batches are cut, a step of `part` times as many samples takes as many times as long.
        """
        factor = self.factor(share)
        if not self._recorded_s:
            return (factor - 1.0) * cpu_s
        pause_s = self._recorded_s[(step + self._first) % len(self._recorded_s)] * factor * part - compute_s
        if pause_s < 0.0:
            self.num_overrun += 1
            self.overrun_s -= pause_s
        return max(0.0, pause_s)
