"""Virtual time: what is to happen, in the order of its time; of two things at one time, the one that was planned first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

Planned = list[Any]
"""Time, place among equals, what to call (None: called off), with what."""


class Timeline:
    """`now_s` only grows, and only in `step`; nothing here reads a clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_events = 0
        self._heap: list[Planned] = []
        self._places = count()

    def at(self, time_s: float, call: Callable[..., object], *arguments: object) -> Planned:
        """Plan a call; a time that has passed is now."""
        planned: Planned = [max(time_s, self.now_s), next(self._places), call, arguments]
        heappush(self._heap, planned)
        return planned

    def after(self, delay_s: float, call: Callable[..., object], *arguments: object) -> Planned:
        """Plan a call `delay_s` from now."""
        planned: Planned = [self.now_s + delay_s, next(self._places), call, arguments]
        heappush(self._heap, planned)
        return planned

    def call_off(self, planned: Planned) -> None:
        """Let a planned call not happen."""
        planned[2] = None

    def step(self) -> bool:
        """Let the next thing happen; False when nothing is planned."""
        heap = self._heap
        while heap:
            time_s, _, call, arguments = heappop(heap)
            if call is not None:
                self.now_s = time_s
                self.num_events += 1
                call(*arguments)
                return True
        return False
