"""The coordinator's part where all live workers meet: each brings values, all get the weighted sums.

A member is waited for only where its script can still come: not at a meeting of an epoch before its first, nor at one
of an epoch that it has left behind.
"""

from __future__ import annotations

from paceline.logic.membership import Worker
from paceline.messages import Meet, Met
from paceline.roles.job import Job


class Meeting:
    """Members under one key, with the values they brought; `epoch` is where the first of them was (-1: before any)."""

    def __init__(self, since_s: float, epoch: int) -> None:
        self.since_s, self.epoch = since_s, epoch
        self.brought: dict[int, tuple[tuple[float, ...], float]] = {}


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
        members = self.job.members.attached()
        return [one for one in members if one.id not in meeting.brought and one.first_epoch <= meeting.epoch >= one.epoch]

    def left(self, worker: Worker) -> None:
        """A member is gone, and what it brought with it."""
        for meeting in self.open.values():
            meeting.brought.pop(worker.id, None)

    def settle(self) -> None:
        """Close the meetings where nobody is missing."""
        for key, meeting in list(self.open.items()):
            if not self.missing_at(meeting):
                del self.open[key]
                self._close(key, meeting)

    def _close(self, key: str, meeting: Meeting) -> None:
        present = sorted(meeting.brought)
        brought = [meeting.brought[number] for number in present]
        width = max((len(values) for values, _ in brought), default=0)
        sums = tuple(sum(weight * values[i] for values, weight in brought if i < len(values)) for i in range(width))
        met = Met(key, sums, sum(weight for _, weight in brought), self.job.version)
        for number in present:
            self.job.tell(self.job.members.workers[number], met)
