"""Virtual time: what is to happen, in the order of its time; of two things at one time, the one that was planned first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Planned = list[Any]
"""What to call (None: called off), with what."""


class Timeline:
    """`now_s` only grows, and only in `step`, also to an instant at which all was called off; nothing here reads a clock.

    The heap holds each instant once, as a bare number, so that what thousands of workers do at the same time costs no comparison.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_events = 0
        self._instants: list[float] = []
        self._planned: dict[float, deque[Planned]] = {}
        self._now: deque[Planned] = deque()

    def at(self, time_s: float, call: Callable[..., object], *arguments: object) -> Planned:
        """Plan a call; a time that has passed is now."""
        planned: Planned = [call, arguments]
        if time_s <= self.now_s:
            self._now.append(planned)
        elif (others := self._planned.get(time_s)) is not None:
            others.append(planned)
        else:
            self._planned[time_s] = deque((planned,))
            heappush(self._instants, time_s)
        return planned

    def after(self, delay_s: float, call: Callable[..., object], *arguments: object) -> Planned:
        """Plan a call `delay_s` from now."""
        return self.at(self.now_s + delay_s, call, *arguments)

    def call_off(self, planned: Planned) -> None:
        """Let a planned call not happen."""
        planned[0] = None

    def step(self) -> bool:
        """Let the next thing happen; False when nothing is planned."""
        while True:
            now = self._now
            while now:
                call, arguments = now.popleft()
                if call is not None:
                    self.num_events += 1
                    call(*arguments)
                    return True
            if not self._instants:
                return False
            self.now_s = heappop(self._instants)
            self._now = self._planned.pop(self.now_s)
