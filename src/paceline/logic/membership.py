"""Who is in the job and what each is doing, with the counts that the gate asks for kept as they change.

Counts follow phases and holdings, so no decision scans the members.
"""

from __future__ import annotations

from enum import Enum

from paceline.logic.gate import Crowd
from paceline.messages import Address, ModelSpec


class Phase(Enum):
    """What a worker is doing, as the coordinator knows it."""

    JOINING = "joining"
    RESTING = "between leases"
    COMPUTING = "computing"
    ASKING = "asking to start"
    WAITING = "waiting"


# a member looked up on its Enum takes ten times as long (Python 3.11), and every step does so many times
JOINING, RESTING, COMPUTING, ASKING, WAITING = Phase


class Worker:
    """One member. `counted` since its first start; `holds` while it holds samples, a pending gradient included.

    `is_open`: it is in an epoch whose samples nobody counts, so there is always more to start on. `left_epoch`: it has
    left its loop. `since_s` is since when it computes or waits. `told_pace` counts the paces up to the one it knows.
    `first_epoch` is the epoch that it begins with, -1 for those of the first gathering; `epoch` the last one entered.
    `started` are the entries of the step that it computes, `recalled` those taken back that it was not told of.
    """

    def __init__(self, worker: int, incarnation: int, model: ModelSpec) -> None:
        self.id, self.incarnation, self.model = worker, incarnation, model
        self.address = Address("worker", worker)
        self.phase = JOINING
        self.welcomed = self.attached = self.counted = self.holds = self.in_place = self.startable = self.is_gone = False
        self.is_open = self.left_epoch = self.ledgered = False
        self.since_s = 0.0
        self.refused = ""
        self.started: list[int] = []
        self.recalled: list[int] = []
        self.num_pending = self.next_step = self.told_pace = self.not_finite = self.stale = 0
        self.first_epoch = self.epoch = -1
        self.hyper = b""


class Membership:
    """The live members by id, and their `crowd`; change a phase through `move` and holdings through `recount`.

    Of `num_attached` of them every server has the memory.
    """

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self.crowd = Crowd()
        self.num_attached = 0

    def attached(self) -> list[Worker]:
        """Members whose memory every server has."""
        return [worker for worker in self.workers.values() if worker.attached]

    def attach(self, worker: Worker) -> None:
        """Every server has this member's memory."""
        self.num_attached += not worker.attached
        worker.attached = True

    def add(self, worker: Worker) -> None:
        """A new member, not counted yet."""
        self.workers[worker.id] = worker

    def count(self, worker: Worker) -> None:
        """From now on `worker` counts in quorums."""
        worker.counted = True
        self.crowd.live += 1
        self.crowd.holders += worker.holds

    def move(self, worker: Worker, phase: Phase, *, in_place: bool = False) -> None:
        """`worker` is in `phase`, computing `in_place` or not; one that rests or waits is to be recounted."""
        crowd = self.crowd
        if worker.phase is COMPUTING:
            crowd.computing -= 1
            crowd.in_place -= worker.in_place
        asks = phase is ASKING
        if phase is COMPUTING:
            crowd.computing += 1
            crowd.in_place += in_place
        if asks is not worker.startable:
            crowd.startable += 1 if asks else -1
            worker.startable = asks
        worker.phase, worker.in_place = phase, in_place

    def recount(self, worker: Worker, *, unstarted: bool) -> None:
        """After a change of leases or pending gradients; `unstarted`: it has entries that it did not start."""
        holds = bool(unstarted or worker.started or worker.num_pending or worker.is_open)
        startable = worker.phase is ASKING or (worker.phase is RESTING and (unstarted or worker.is_open))
        if worker.counted:
            self.crowd.holders += holds - worker.holds
        self.crowd.startable += startable - worker.startable
        worker.holds, worker.startable = holds, startable

    def remove(self, worker: Worker) -> None:
        """`worker` is no member any more; what it has pending still counts."""
        self.move(worker, JOINING)
        if worker.counted:
            self.crowd.live -= 1
            self.crowd.holders -= worker.holds
        if worker.num_pending:
            self.crowd.holders += 1
        self.num_attached -= worker.attached
        worker.is_gone = True
        del self.workers[worker.id]

    def bury(self) -> None:
        """What a worker had pending when it left is folded."""
        self.crowd.holders -= 1
