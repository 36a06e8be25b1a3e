"""What makes a worker slower than its machine: `--slow` and `--compute recorded:FILE`. Arithmetic only, no clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import ConfigError
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

    def pause_s(self, step: int, share: float, *, cpu_s: float, compute_s: float) -> float:
        """The sleep after a step whose compute took `cpu_s` of processor and `compute_s` of wall time.

        Processor time is stretched, so that crowded cores do not change the factor; a recorded time is kept to.
        """
        factor = self.factor(share)
        if not self._recorded_s:
            return (factor - 1.0) * cpu_s
        pause_s = self._recorded_s[(step + self._first) % len(self._recorded_s)] * factor - compute_s
        if pause_s < 0.0:
            self.num_overrun += 1
            self.overrun_s -= pause_s
        return max(0.0, pause_s)


def read_recorded(path: str) -> list[float]:
    """The step times in seconds of a file: a JSON list, or a number a line. Raises ConfigError for anything else."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        words = json.loads(text) if text.lstrip().startswith("[") else text.split()
        times_s = [float(word) for word in words]
    except OSError as error:
        raise ConfigError(f"--compute recorded:{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--compute recorded:{path} must hold one step time in seconds a line, or a JSON list of them: {error}") from None
    if not times_s or not all(0.0 <= time_s < float("inf") for time_s in times_s):
        raise ConfigError(f"--compute recorded:{path} must hold at least one step time, each of 0 seconds or more")
    return times_s
