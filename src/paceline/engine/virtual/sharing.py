"""A link that several transfers use at once: each gets an equal part of its rate (processor sharing).

The link counts the bytes that each of its transfers has been served since it was new, the same for all: a transfer
is over when that count has grown by its size. So neither a beginning nor an end looks at the other transfers.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

from paceline.engine.virtual.timeline import Timeline

Done = tuple[Callable[..., object], tuple[Any, ...]]


class SharedLink:
    """`bytes_per_s` for all transfers together."""

    def __init__(self, timeline: Timeline, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._timeline = timeline
        self._served = 0.0
        self._looked_s = 0.0
        self._num_transfers = 0
        self._ends: list[float] = []
        self._ending: dict[float, list[Done]] = {}
        self._due_s = inf

    def carry(self, size_bytes: float, done: Callable[..., object], *arguments: object) -> None:
        """Transfer so many bytes, then call `done`."""
        self._look()
        self._num_transfers += 1
        end = self._served + size_bytes
        if (others := self._ending.get(end)) is not None:
            others.append((done, arguments))
        else:
            self._ending[end] = [(done, arguments)]
            heappush(self._ends, end)
        self._plan()

    def _look(self) -> None:
        """Bring what was served up to now; an idle link counts from 0 again, so that rounding does not grow."""
        now_s = self._timeline.now_s
        if self._num_transfers:
            self._served += (now_s - self._looked_s) * self.bytes_per_s / self._num_transfers
        else:
            self._served = 0.0
        self._looked_s = now_s

    def _first_end_s(self) -> float:
        return self._looked_s + max(0.0, self._ends[0] - self._served) * self._num_transfers / self.bytes_per_s

    def _plan(self) -> None:
        """Be called when the first transfer is over; more transfers only put that off, which is seen when called."""
        due_s = self._first_end_s()
        if due_s < self._due_s:
            self._due_s = due_s
            self._timeline.at(due_s, self._arrive, due_s)

    def _arrive(self, due_s: float) -> None:
        if due_s != self._due_s:
            return  # another call was planned for an earlier end
        self._look()
        self._due_s = inf
        over: list[Done] = []
        while self._ends and self._first_end_s() <= due_s:
            end = heappop(self._ends)
            self._served = max(self._served, end)
            ended = self._ending.pop(end)
            self._num_transfers -= len(ended)
            over += ended
        if self._ends:
            self._plan()
        for done, arguments in over:
            done(*arguments)
