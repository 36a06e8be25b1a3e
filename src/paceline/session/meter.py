"""A worker's time, split into computing and waiting for the others, and of that waiting what the exchange took."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple


class Spent(NamedTuple):
    """Wall seconds of computing and of waiting, processor seconds of computing; `exchange_s` is part of `wait_s`."""

    compute_s: float
    wait_s: float
    cpu_s: float
    exchange_s: float = 0.0


class Meter:
    """Counts computing from `begin`, waiting inside `waiting()`; what lies between steps and loops counts as neither.

    The exchange of a wait is what follows `let_go`: the worker might go on, had it the parameters.
    """

    def __init__(self, now_s: Callable[[], float] = time.perf_counter, cpu_s: Callable[[], float] = time.process_time) -> None:
        self._now_s, self._cpu_s = now_s, cpu_s
        self._since: tuple[float, float] | None = None
        self._let_go_s: float | None = None
        self._compute_s = self._wait_s = self._used_s = self._exchange_s = 0.0

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
            end_s = self._now_s()
            self._wait_s += end_s - start_s
            if self._let_go_s is not None:
                self._exchange_s += end_s - self._let_go_s
                self._let_go_s = None
            if was_computing:
                self.begin()

    def let_go(self) -> None:
        """Inside `waiting()`: the others let this worker go on; from here to the end it waits for what it reads."""
        self._let_go_s = self._now_s()

    def spent(self) -> Spent:
        """What has been counted since the last `take`, up to now."""
        if self._since is not None:
            self.end()
            self.begin()
        return Spent(self._compute_s, self._wait_s, self._used_s, self._exchange_s)

    def take(self) -> Spent:
        """What has been counted since the last call; the count begins anew."""
        spent = self.spent()
        self._compute_s = self._wait_s = self._used_s = self._exchange_s = 0.0
        return spent
