"""Leads: how many answered steps a worker is ahead of the slowest active one, without a scan per step.

A low mark follows the fewest; workers that wait for it lie in a heap. A worker at rest holds nobody back, and one
that joins or comes back starts at the fewest at least.
"""

from __future__ import annotations

from heapq import heappop, heappush


class Progress:
    """Answered steps of each active worker since the last change of pace; `num_blocked` of them wait for the slowest.

    >>> progress = Progress()
    >>> for worker in (0, 1):
    ...     progress.enter(worker)
    >>> progress.answered(0)
    >>> progress.lead(0), progress.lead(1)
    (1, 0)
    """

    def __init__(self) -> None:
        self._count: dict[int, int] = {}
        self._tally: dict[int, int] = {}
        self._resting: dict[int, int] = {}
        self._blocked: list[tuple[int, int]] = []
        self._low = 0

    @property
    def num_blocked(self) -> int:
        """Entries of the heap of waiting workers."""
        return len(self._blocked)

    def enter(self, worker: int) -> None:
        """`worker` is active: at its own count, or at the fewest if that is more."""
        if worker not in self._count:
            count = max(self._resting.pop(worker, 0), self._low)
            if not self._count:
                self._low = count
            self._count[worker] = count
            self._tally[count] = self._tally.get(count, 0) + 1

    def rest(self, worker: int) -> None:
        """`worker` is between leases: it is on no lead and holds nobody back."""
        count = self._count.pop(worker, None)
        if count is not None:
            self._resting[worker] = count
            self._leave(count)

    def remove(self, worker: int) -> None:
        """`worker` is no member any more."""
        self.rest(worker)
        self._resting.pop(worker, None)

    def answered(self, worker: int) -> None:
        """A push of `worker` was answered (applied or refused)."""
        count = self._count[worker]
        self._count[worker] = count + 1
        self._tally[count + 1] = self._tally.get(count + 1, 0) + 1
        self._leave(count)

    def lead(self, worker: int) -> int:
        """How far `worker` is ahead of the slowest active worker."""
        return self._count.get(worker, self._low) - self._low

    def block(self, worker: int, max_lead: int) -> None:
        """`worker` waits until its lead is within `max_lead`."""
        heappush(self._blocked, (self._count[worker] - max_lead, worker))

    def unblocked(self) -> list[int]:
        """The waiting workers whose lead is within their bound now; they wait no more."""
        free: list[int] = []
        while self._blocked and self._blocked[0][0] <= self._low:
            free.append(heappop(self._blocked)[1])
        return free

    def reset(self) -> None:
        """A change of pace: all leads are 0 and nobody waits for the slowest."""
        self._blocked.clear()
        self._count = dict.fromkeys(self._count, 0)
        self._tally = {0: len(self._count)} if self._count else {}
        self._resting.clear()
        self._low = 0

    def _leave(self, count: int) -> None:
        self._tally[count] -= 1
        if not self._tally[count]:
            del self._tally[count]
            if count == self._low and self._count:
                while self._low not in self._tally:
                    self._low += 1
