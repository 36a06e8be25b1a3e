"""What becomes of the workers: who is there from the start, who comes late, fails, is killed, comes back and leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.engine.virtual.cluster import Group, Kill
from paceline.engine.virtual.compute import stream
from paceline.engine.virtual.job import Job
from paceline.engine.virtual.member import Member


class Fates:
    """Plans the lives of the `crew` on the job's timeline; `make` builds an incarnation of a worker."""

    def __init__(self, job: Job, crew: Sequence[Group], kills: Sequence[Kill], seed: int, make: Callable[[int, int], Member]) -> None:
        self._job, self._crew, self._make = job, crew, make
        self._incarnations = [0] * len(crew)
        self._chances = [stream(seed, worker, "failures") for worker in range(len(crew))]
        timeline = job.timeline
        for worker, group in enumerate(crew):
            if group.joins > 0.0:
                job.absent(worker)
            timeline.at(group.joins, self._start, worker)
            if group.leaves is not None:
                timeline.at(group.leaves, self._leave, worker)
        for kill in kills:
            timeline.at(kill.at, self._kill, kill)

    def _start(self, worker: int) -> None:
        member = self._make(worker, self._incarnations[worker])
        self._incarnations[worker] += 1
        mtbf_s = self._crew[worker].mtbf
        if mtbf_s is not None:
            self._job.timeline.after(self._chances[worker].expovariate(1.0 / mtbf_s), self._fail, member)
        self._job.join(member)

    def _fail(self, member: Member) -> None:
        if member.alive:
            self._job.kill(member.id, "its machine failed")
            self._job.timeline.after(self._crew[member.id].repair, self._come_back, member)

    def _kill(self, kill: Kill) -> None:
        member = self._job.members.get(kill.worker)
        if member is not None and member.alive:
            self._job.kill(kill.worker, "it was killed")
            if kill.repair is not None:
                self._job.timeline.after(kill.repair, self._come_back, member)

    def _come_back(self, dead: Member) -> None:
        """Unless it was started again meanwhile, or its time to leave has come."""
        leaves_s = self._crew[dead.id].leaves
        is_due = leaves_s is None or self._job.timeline.now_s < leaves_s
        if self._job.members[dead.id] is dead and is_due:
            self._start(dead.id)

    def _leave(self, worker: int) -> None:
        self._job.kill(worker, "it left the cluster")
