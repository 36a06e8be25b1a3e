"""A worker's time, split into computing and waiting for the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple


class Spent(NamedTuple):
    """Wall seconds of computing and of waiting, processor seconds of computing."""

    compute_s: float
    wait_s: float
    cpu_s: float


class Meter:
    """Counts computing from `begin`, waiting inside `waiting()`; what lies between steps and loops counts as neither."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter, cpu_s: Callable[[], float] = time.process_time) -> None:
        self._now_s, self._cpu_s = now_s, cpu_s
        self._since: tuple[float, float] | None = None
        self._compute_s = self._wait_s = self._used_s = 0.0

    def begin(self) -> None:
        """The worker computes from now on."""
        self._since = self._now_s(), self._cpu_s()

    def end(self) -> None:
        """It does not any more."""
        if self._since is not None:
            self._compute_s += self._now_s() - self._since[0]
            self._used_s += self._cpu_s() - self._since[1]
            self._since = None

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Inside, the worker waits; afterwards it goes on with what it did."""
        was_computing = self._since is not None
        self.end()
        start_s = self._now_s()
        try:
            yield
        finally:
            self._wait_s += self._now_s() - start_s
            if was_computing:
                self.begin()

    def spent(self) -> Spent:
        """What has been counted since the last `take`, up to now."""
        if self._since is not None:
            self.end()
            self.begin()
        return Spent(self._compute_s, self._wait_s, self._used_s)

    def take(self) -> Spent:
        """What has been counted since the last call; the count begins anew."""
        spent = self.spent()
        self._compute_s = self._wait_s = self._used_s = 0.0
        return spent
