"""The coordinator's part that knows who holds the shards: the servers, or a group of workers that hold all of them each.

A group makes the updates of a sync pace among its members, each of whom takes part in each update. It is formed anew when one
of them is lost, and left, the shards handed to the servers, when one joins or ends or another kind of pace is wanted.
"""

from __future__ import annotations

from enum import Enum

from paceline.logic.membership import WAITING, Worker
from paceline.messages import Broken, Convene, Convened, Disband, Form, Formed, Free, Handed, Leaving, Restate
from paceline.pace import Pace
from paceline.roles.folds import Folds
from paceline.roles.job import Job

MEND_S = 0.3
"""A group that breaks mostly does so because one of it is gone, which is known a moment later: so long its end is waited for."""
MOST_FAILURES = 4
"""A group that broke so often since its last update is given up, and the run goes on through the servers."""
LOST = "it was in its worker's memory"
BROKEN = "the group broke"


class Whereabouts(Enum):
    """Who holds the shards, or where they are on their way to."""

    SERVERS = "the servers hold the shards"
    MENDING = "the group broke"
    CONVENING = "the first of a group opens the place to meet"
    FORMING = "the group meets"
    GROUP = "the group holds the shards"
    BROKEN = "the group broke for good, and what is computed comes to its end"
    HANDING = "one of the group hands the shards to the servers"


class Routes:
    """`generation` counts the groups. `awaited` are the members that the others wait for while the shards move."""

    def __init__(self, job: Job, folds: Folds) -> None:
        self.job, self.folds = job, folds
        self.stage = Whereabouts.SERVERS
        self.generation = 0
        self.awaited: set[int] = set()
        self.since_s = 0.0
        self._wish = job.settings.route
        self._next: Pace | None = None
        self._needs_servers = False
        self._members: tuple[int, ...] = ()
        self._fresh = True
        self._at_servers_version = 0
        self._failures = 0
        self._retry_s: float | None = None
        self._leaving: set[int] = set()
        self._told: list[Formed] = []
        self._held = self._has_opened = False

    # --- what the others ask ------------------------------------------------------------------------------

    @property
    def num_broken(self) -> int:
        """How often the group broke since its last update."""
        return self._failures

    def may_start(self, worker: Worker) -> bool:
        """Whether a member may begin a step: not while the group sums, nor, once nobody computes, before the shards move.

        What others have begun is finished first, with all who can take part in it.
        """
        amid = self.job.members.crowd.computing or self.job.pending
        if self.stage is Whereabouts.SERVERS:
            return self._wish == "servers" or bool(amid) or not self._wants
        is_in = worker.id in self._members
        return self.stage is Whereabouts.GROUP and self.job.vote is None and is_in and (bool(amid) or self._stays)

    @property
    def holds_back(self) -> bool:
        """Whether somebody may have to wait for the shards to move."""
        return self.stage not in (Whereabouts.SERVERS, Whereabouts.GROUP) or self.job.vote is not None or self._is_to_move

    @property
    def _is_to_move(self) -> bool:
        return self._wants if self.stage is Whereabouts.SERVERS else not self._stays

    def may_change(self, pace: Pace, *, at_servers: bool) -> bool:
        """Whether those who hold the shards now can go on under `pace`; only servers keep a state and go back to it."""
        return self.stage is Whereabouts.SERVERS or (self.stage is Whereabouts.GROUP and not at_servers and pace.is_collective)

    @property
    def _wants(self) -> bool:
        pace = self._next or self.job.pace
        return self._wish != "servers" and pace.is_collective and not self._needs_servers and not self._leaving

    @property
    def _stays(self) -> bool:
        return self._wants and self.job.members.num_attached == len(self._members)

    # --- when ---------------------------------------------------------------------------------------------

    def settle(self, change: tuple[Pace, bool] | None, *, somebody_waits: bool) -> bool:
        """After any event, with the pace asked for and whether only servers can change to it; returns whether the shards moved."""
        if self._wish == "servers" and self.stage is Whereabouts.SERVERS:
            return False
        self._next, self._needs_servers = change or (None, False)
        job, stage = self.job, self.stage
        if not job.members.crowd.computing and job.vote is None and not job.ended:
            self._move(at_rest=change is None and somebody_waits)
        return self.stage is not stage

    def frees(self) -> bool:
        """Whether those who were held back may start now; told once."""
        held, self._held = self._held, self.holds_back
        opened, self._has_opened = self._has_opened, False
        return opened or (held and not self._held)

    def _move(self, *, at_rest: bool) -> None:
        """Nobody computes: let the shards move if that is wanted; what a broken group cannot sum any more is refused."""
        job = self.job
        if self.stage is Whereabouts.SERVERS and at_rest and self._wants and not job.pending:
            attached = [worker.id for worker in job.members.attached()]
            if len(attached) == len(job.members.workers):
                self._convene(tuple(sorted(attached)), fresh=True)
        elif self.stage is Whereabouts.BROKEN:
            for one in list(job.pending):
                self.folds.take_back(one, BROKEN)
            self._hand_over()
        elif self.stage is Whereabouts.GROUP and not self._stays and not job.pending:
            self._hand_over()

    def expire(self) -> None:
        """A group that broke is formed again."""
        if self._retry_s is not None and self.job.now_s >= self._retry_s:
            self._convene(self._members, fresh=self._fresh)

    @property
    def due_s(self) -> float | None:
        """When `expire` wants to be called."""
        return self._retry_s

    # --- a group ------------------------------------------------------------------------------------------

    def _convene(self, members: tuple[int, ...], *, fresh: bool) -> None:
        job = self.job
        self.generation += 1
        self._members, self._fresh, self._retry_s, self.since_s = members, fresh, None, job.now_s
        self._told.clear()
        job.is_moving = True
        if fresh:
            self._at_servers_version = job.version
        else:
            job.group = members
        if len(members) == 1:
            self._form("", 0)
        else:
            self.stage, self.awaited = Whereabouts.CONVENING, {members[0]}
            job.tell(job.members.workers[members[0]], Convene(self.generation))

    def convened(self, worker: Worker, message: Convened) -> None:  # noqa: ARG002
        """There is a place where the group can meet."""
        if self.stage is Whereabouts.CONVENING and message.generation == self.generation:
            self._form(message.host, message.port)

    def _form(self, host: str, port: int) -> None:
        job = self.job
        self.stage, self.awaited, self.since_s = Whereabouts.FORMING, set(self._members), job.now_s
        form = Form(self.generation, self._members, job.version, self._fresh, host, port, self._wish == "auto")
        for number in self._members:
            job.tell(job.members.workers[number], form)

    def formed(self, worker: Worker, message: Formed) -> None:
        """A member is in the group; with the last one the order goes there."""
        if self.stage is not Whereabouts.FORMING or message.generation != self.generation:
            return
        if message.version != self.job.version:
            self.broken(worker, Broken(self.generation, f"worker {worker.id} holds version {message.version} of {self.job.version}"))
            return
        self._told.append(message)
        self.awaited.discard(worker.id)
        if not self.awaited:
            self._open()

    def _open(self) -> None:
        job = self.job
        job.group, self.stage, job.is_moving, self._fresh = self._members, Whereabouts.GROUP, False, False
        self._has_opened = True  # also a group that is to move next finishes what is begun, with all who can take part
        self.folds.forget_hyper()
        why = self._judge() if self._wish == "auto" else ""
        job.note("route", route="collective", generation=self.generation, version=job.version, workers=list(self._members), why=why)

    def _judge(self) -> str:
        """Which route is faster, by what the members have measured; the servers' when in doubt."""
        collective_s = max(told.collective_s for told in self._told)
        servers_s = max(told.servers_s for told in self._told)
        self._wish = "collective" if collective_s < servers_s else "servers"
        self.job.is_together = self._wish == "collective"
        measured = f"summing a gradient in the group takes {1e3 * collective_s:.3g} ms, its way over the servers {1e3 * servers_s:.3g} ms"
        why = f"{measured} (the one by summing a piece of it, the other as twice a pull)"
        self.job.warn(f"route {self._wish}: {why}")
        return why

    def broken(self, worker: Worker, message: Broken) -> None:
        """The group could not meet or sum; what is pending is still where it was."""
        job = self.job
        if message.generation != self.generation or self.stage not in (Whereabouts.CONVENING, Whereabouts.FORMING, Whereabouts.GROUP):
            return
        self.folds.give_up()
        self._failures += 1
        job.note("broken", generation=self.generation, worker=worker.id, why=message.why)
        if self._failures < MOST_FAILURES:
            self.stage, job.is_moving, self.awaited = Whereabouts.MENDING, True, set()
            self._retry_s = job.now_s + MEND_S
            return
        self._wish, job.is_together = "servers", False
        job.warn(f"route servers from now on: the workers' group failed {self._failures} times in a row, the last time {message.why}")
        if self._fresh:
            self._tell_all(Disband(gives=False))
            self._at_servers()
        else:
            self.stage, job.is_moving = Whereabouts.BROKEN, True

    def summed(self) -> None:
        """An update was made: the group works."""
        self._failures = 0

    # --- back to the servers ------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """One of the group gives the shards to the servers, rather one that only waits for that; they may have them still."""
        job = self.job
        if self._at_servers_version == job.version:
            self._tell_all(Disband(gives=False))
            self._at_servers()
            return
        giver = min(self._leaving & set(self._members) or self._members)
        self.stage, job.is_moving, self.awaited, self.since_s = Whereabouts.HANDING, True, {giver}, job.now_s
        for number in self._members:
            job.tell(job.members.workers[number], Disband(gives=number == giver))

    def handed(self, worker: Worker, message: Handed) -> None:
        """The shards are here, for the servers."""
        if self.stage is not Whereabouts.HANDING or worker.id not in self.awaited or message.version != self.job.version:
            return
        self._at_servers()
        self.job.order(Restate(self.job.version, has_parameters=True, has_optimizer_state=True, handed=True))

    def _at_servers(self) -> None:
        job = self.job
        self.stage, self.awaited, self._members, self._retry_s = Whereabouts.SERVERS, set(), (), None
        job.group, job.is_moving, self._failures = (), False, 0
        self.folds.forget_hyper()
        job.note("route", route="servers", generation=self.generation, version=job.version)
        for number in self._leaving & job.members.workers.keys():
            job.tell(job.members.workers[number], Free())
        self._leaving.clear()

    def _tell_all(self, message: Disband) -> None:
        for number in self._members:
            self.job.tell(self.job.members.workers[number], message)

    # --- members ------------------------------------------------------------------------------------------

    def leaving(self, worker: Worker, _: Leaving) -> None:
        """A member's script has ended: it may go once others hold the shards."""
        if self.stage is Whereabouts.SERVERS:
            self.job.tell(worker, Free())
        else:
            self._leaving.add(worker.id)

    def left(self, worker: Worker) -> None:
        """A member is gone: the others form a group of their own, from what each of them holds."""
        self._leaving.discard(worker.id)
        if worker.id not in self._members:
            return
        job, members = self.job, tuple(number for number in self._members if number != worker.id)
        if self._fresh:
            self._members = members
            if members:
                self._convene(members, fresh=True)
            else:
                self._at_servers()
        elif not members:
            gone = "the last one of the group that held the parameters and the optimizer's state"
            job.end(4, f"worker {worker.id} was lost, {gone}: the run ends after update {job.version}")
        elif self.stage in (Whereabouts.BROKEN, Whereabouts.HANDING):
            self._members = job.group = members
            if worker.id in self.awaited:
                self._hand_over()
        else:
            self.folds.give_up()
            self._convene(members, fresh=False)

    def late(self, patience_s: float, resting_s: float) -> list[int]:
        """The members that were waited for too long while the shards move; those at rest may take `resting_s`."""
        waited_s = self.job.now_s - self.since_s
        workers = self.job.members.workers
        limits = {number: patience_s if workers[number].phase is WAITING else resting_s for number in self.awaited & workers.keys()}
        return sorted(number for number, limit_s in limits.items() if waited_s > limit_s)
