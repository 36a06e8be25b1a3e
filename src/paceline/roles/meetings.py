"""The coordinator's part where all live workers meet: each brings values, all get the weighted sums.

A member is waited for only where its script can still come: not at a meeting of an epoch before its first, nor at one
of an epoch that it has left behind.
"""

from __future__ import annotations

from paceline.logic.membership import Worker
from paceline.messages import Meet, Met
from paceline.roles.job import Job


class Meeting:
    """Members under one key, with the values they brought; `epoch` is where the first of them was (-1: before any).

    `expected` were missing when they were last looked through, which is done again when none of these is.
    """

    def __init__(self, since_s: float, epoch: int) -> None:
        self.since_s, self.epoch = since_s, epoch
        self.brought: dict[int, tuple[tuple[float, ...], float]] = {}
        self.expected: list[Worker] = []

    def misses(self, worker: Worker) -> bool:
        """Whether this member has still to come."""
        return not worker.is_gone and worker.id not in self.brought and worker.first_epoch <= self.epoch >= worker.epoch


class Meetings:
    """The meetings that somebody waits at, by key."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.open: dict[str, Meeting] = {}

    def meet(self, worker: Worker, message: Meet) -> None:
        """A worker has come."""
        meeting = self.open.get(message.key)
        if meeting is None:
            meeting = self.open[message.key] = Meeting(self.job.now_s, worker.epoch)
        meeting.brought[worker.id] = (message.values, message.weight)

    def missing_at(self, meeting: Meeting) -> list[Worker]:
        """Who has still to come."""
        return [one for one in self.job.members.attached() if meeting.misses(one)]

    def left(self, worker: Worker) -> None:
        """A member is gone, and what it brought with it."""
        for meeting in self.open.values():
            meeting.brought.pop(worker.id, None)

    def settle(self) -> None:
        """Close the meetings where nobody is missing."""
        for key, meeting in list(self.open.items()):
            if not self._somebody_misses(meeting):
                del self.open[key]
                self._close(key, meeting)

    def _somebody_misses(self, meeting: Meeting) -> bool:
        """Whether somebody has still to come, asked after every event."""
        expected = meeting.expected
        while expected and not meeting.misses(expected[-1]):
            expected.pop()
        if not expected:
            meeting.expected = self.missing_at(meeting)
        return bool(meeting.expected)

    def _close(self, key: str, meeting: Meeting) -> None:
        present = sorted(meeting.brought)
        brought = [meeting.brought[number] for number in present]
        width = max((len(values) for values, _ in brought), default=0)
        sums = tuple(sum(weight * values[i] for values, weight in brought if i < len(values)) for i in range(width))
        met = Met(key, sums, sum(weight for _, weight in brought), self.job.version)
        for number in present:
            self.job.tell(self.job.members.workers[number], met)
