"""The samples of an epoch that are cut when they are leased: in stretches of one sync update, a range of each for every worker.

A stretch is divided when somebody first needs a piece of it, by the parts of that moment, so the pieces of a stretch
always add up to it and each worker's next piece is in the same stretch as the others' while all go in step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from math import inf

from paceline.logic.shares import pieces

MOST_BEHIND = 8
"""So many stretches after its own was divided, a piece that its worker has not come for is open to the `greedy` ones."""

Range = tuple[int, int]
"""First sample, and the one behind the last."""


class Stretches:
    """`num_samples` in stretches of `cut`; `num_uncut` of them are in no piece yet.

    >>> stretches = Stretches(30, 12)
    >>> stretches.divide({0: 0.5, 1: 0.25, 2: 0.25})
    >>> stretches.take(0), stretches.take(0), stretches.take(1)
    ((0, 6), (12, 18), (6, 9))
    """

    def __init__(self, num_samples: int, cut: int) -> None:
        self.num_uncut = num_samples
        self._cut, self._unopened = cut, (0, num_samples)
        self._parts: dict[int, float] = {}
        self._sizes: dict[int, int] = {}
        self._reserved: dict[int, deque[Range]] = {}
        self._order: deque[tuple[int, int]] = deque()
        self._orphaned: deque[Range] = deque()
        self._num_ranges = self._turn = 0

    @property
    def num_pieces(self) -> int:
        """About how many pieces are still to be cut, 0 only when none is."""
        start, stop = self._unopened
        return self._num_ranges - (start - stop) * max(1, len(self._parts)) // self._cut

    def divide(self, parts: Mapping[int, float]) -> None:
        """Stretches opened from now on are divided by `parts`; what is reserved for a worker without one is open to all."""
        for worker in [worker for worker in self._reserved if worker not in parts]:
            self._orphaned.extend(self._reserved.pop(worker))
        total = sum(parts.values())
        self._parts = {worker: parts[worker] / total for worker in sorted(parts)}
        self._sizes = pieces(self._cut, self._parts)
        for worker in parts:
            self._reserved.setdefault(worker, deque())

    def has_for(self, worker: int, *, greedy: bool) -> bool:
        """Whether there may be a piece for `worker`, surely when it is `greedy`: then what others have not come for counts."""
        start, stop = self._unopened
        return bool(self.num_uncut and (greedy or start < stop or self._orphaned or self._reserved.get(worker)))

    def take(self, worker: int, *, greedy: bool = False) -> Range | None:
        """The next piece of `worker`, who has a part: reserved for it, left by those who are gone, or of a new stretch.

        A `greedy` one takes what others have not come for: before a new stretch what is left far behind, then the rest.
        """
        own = self._reserved[worker]
        queue = own or self._orphaned
        if not queue and greedy:
            queue = self._left_behind(MOST_BEHIND)
        while not queue and self._unopened[0] < self._unopened[1]:
            self._open()
            queue = own
        if not queue and greedy:
            queue = self._left_behind(0)
        if not queue:
            return None
        return self._first_of(queue, inf if queue is own else self._cut * self._parts[worker])

    def close(self) -> int:
        """Give up all that is not cut; returns how many samples that are."""
        given_up, self.num_uncut, self._num_ranges = self.num_uncut, 0, 0
        self._unopened = (0, 0)
        self._order.clear()
        self._orphaned.clear()
        for queue in self._reserved.values():
            queue.clear()
        return given_up

    def _open(self) -> None:
        """Divide the next stretch."""
        start, stop = self._unopened
        whole = min(self._cut, stop - start)
        for worker, size in self._sizes_of(whole).items():
            self._reserved[worker].append((start, start + size))
            start += size
            self._order.append((start, worker))
            self._num_ranges += 1
        self._unopened = (start, stop)

    def _sizes_of(self, whole: int) -> dict[int, int]:
        """The pieces of a stretch; one that is too small for all gives a sample each to the next ones in turn."""
        num_workers = len(self._parts)
        if whole >= num_workers:
            return self._sizes if whole == self._cut else pieces(whole, self._parts)
        in_turn = islice([*self._parts, *self._parts], self._turn, self._turn + whole)
        self._turn = (self._turn + whole) % num_workers
        return dict.fromkeys(in_turn, 1)

    def _left_behind(self, num_stretches: int) -> deque[Range]:
        """The queue with the oldest reserved range, if so many stretches were divided since; else an empty one."""
        while self._order:
            stop, worker = self._order[0]
            queue = self._reserved.get(worker)
            if queue and queue[0][1] == stop:
                return queue if self._unopened[0] - stop >= num_stretches * self._cut else deque()
            self._order.popleft()
        return deque()

    def _first_of(self, queue: deque[Range], size: float) -> Range:
        """The first range of `queue`; where that is worth several pieces of `size`, only the first of so many."""
        start, stop = queue.popleft()
        num_pieces = max(1, int((stop - start) / max(1.0, size)))
        end = start - (start - stop) // num_pieces
        if end < stop:
            queue.appendleft((end, stop))
        else:
            self._num_ranges -= 1
        self.num_uncut -= end - start
        return start, end
