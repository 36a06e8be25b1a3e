"""Who is in the job and what each is doing, with the counts that the gate asks for kept as they change.

Counts follow phases and holdings, so no decision scans the members.
"""

from __future__ import annotations

from enum import Enum

from paceline.logic.gate import Crowd
from paceline.messages import ModelSpec


class Phase(Enum):
    """What a worker is doing, as the coordinator knows it."""

    JOINING = "joining"
    RESTING = "between leases"
    COMPUTING = "computing"
    ASKING = "asking to start"
    WAITING = "waiting"


class Worker:
    """One member. `counted` since its first start; `holds` while it holds samples, a pending gradient included.

    `first_epoch` is the epoch that it begins with, -1 for those of the first gathering; `epoch` the last one entered.
    """

    def __init__(self, worker: int, incarnation: int, pid: int, host: str, model: ModelSpec) -> None:
        self.id, self.incarnation, self.pid, self.host, self.model = worker, incarnation, pid, host, model
        self.phase = Phase.JOINING
        self.welcomed = self.attached = self.counted = self.holds = self.in_place = self.startable = False
        self.since_s = 0.0
        self.waits_for = ""
        self.started: list[int] = []
        self.recalled: list[int] = []
        self.num_pending = 0
        self.told_pace = 0
        self.not_finite = self.stale = 0
        self.is_open = self.left_epoch = self.ledgered = False
        self.next_step = 0
        self.first_epoch = self.epoch = -1


class Membership:
    """The live members by id; change a phase through `move` and holdings through `recount`."""

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self._live = self._holders = self._computing = self._in_place = self._startable = 0

    def crowd(self) -> Crowd:
        """The counts as the gate takes them."""
        return Crowd(self._live, self._holders, self._computing, self._in_place, self._startable)

    @property
    def num_live(self) -> int:
        """Members that count in quorums."""
        return self._live

    def attached(self) -> list[Worker]:
        """Members whose memory every server has."""
        return [worker for worker in self.workers.values() if worker.attached]

    def add(self, worker: Worker) -> None:
        """A new member, not counted yet."""
        self.workers[worker.id] = worker

    def count(self, worker: Worker) -> None:
        """From now on `worker` counts in quorums."""
        worker.counted = True
        self._live += 1
        self._holders += worker.holds

    def move(self, worker: Worker, phase: Phase, *, in_place: bool = False) -> None:
        """`worker` is in `phase`, reading the shards `in_place` or not."""
        self._computing += (phase is Phase.COMPUTING) - (worker.phase is Phase.COMPUTING)
        self._in_place += in_place - worker.in_place
        worker.phase, worker.in_place = phase, in_place

    def recount(self, worker: Worker, *, unstarted: bool) -> None:
        """After a change of leases or pending gradients; `unstarted`: it has entries that it did not start."""
        holds = bool(unstarted or worker.started or worker.num_pending or worker.is_open)
        startable = worker.phase is Phase.ASKING or (worker.phase is Phase.RESTING and (unstarted or worker.is_open))
        if worker.counted:
            self._holders += holds - worker.holds
        self._startable += startable - worker.startable
        worker.holds, worker.startable = holds, startable

    def remove(self, worker: Worker) -> None:
        """`worker` is no member any more."""
        self.move(worker, Phase.JOINING)
        self._startable -= worker.startable
        if worker.counted:
            self._live -= 1
            self._holders -= worker.holds
        del self.workers[worker.id]
