"""The coordinator's part that answers steps: who is refused, who waits and for what, who goes on. It changes the pace.

Nothing here scans the members: who waits for an update is asked again when his gradient is folded, who waits for the
slowest when that one has gone on.
"""

from __future__ import annotations

from typing import NamedTuple

from paceline.logic.gate import UNTIL_SLOWEST, admit, may_start
from paceline.logic.gauges import Gauges
from paceline.logic.membership import ASKING, COMPUTING, RESTING, WAITING, Worker
from paceline.messages import Address, Begin, Keep, PartNorm, Ready, Restore, SetPace, Start
from paceline.pace import Pace
from paceline.roles.effects import Send
from paceline.roles.epochs import Epochs
from paceline.roles.folds import Folds
from paceline.roles.job import Job, Since
from paceline.roles.routes import LOST, Routes

NOT_FINITE_IN_A_ROW = 10
REFUSED_TOO_OFTEN = 3
RAMP_SHARE = 0.07
"""The part of the updates left over which a `ramp` brings the momentum back (Sync-Switch, Li et al. 2021)."""


class Change(NamedTuple):
    """Another pace, asked for. With `keeps` the shards keep their state behind it; with `restores` they go back to that first.

    `ramp_updates` is over how many updates the momentum comes back when the pace ramps it.
    """

    pace: Pace
    why: str
    keeps: bool = False
    restores: bool = False
    ramp_updates: int = 0


class Steps:
    """`waiting` are the members that asked to start and may not yet; `mean_s` is what a step takes of late.

    `change` is the one that was asked for and is not made yet; `leads` are bounds of single workers in place of the pace's.
    """

    def __init__(self, job: Job, epochs: Epochs, folds: Folds, routes: Routes) -> None:
        self.job, self.epochs, self.leases, self.folds, self.routes = job, epochs, epochs.leases, folds, routes
        self.waiting: dict[int, Worker] = {}
        self.mean_s = 0.0
        self.change: Change | None = None
        self.leads: dict[int, int] = {}
        self._advised: set[int] = set()

    # --- a gradient ---------------------------------------------------------------------------------------

    def ready(self, worker: Worker, ready: Ready) -> None:
        """A gradient has arrived on every shard: accept or refuse it, and answer its step."""
        job = self.job
        if ready.incarnation != worker.incarnation or ready.step != worker.next_step:
            return
        if not self._is_founded(worker, ready):
            computed = f"{ready.samples} samples in batches {list(ready.positions)}"
            job.end(4, f"worker {worker.id} pushed step {ready.step} of {computed}; it computes batches {worker.started}")
            return
        worker.next_step += 1
        if ready.hyper:
            worker.hyper = ready.hyper
        job.accounts.stepped(worker.id, ready, job.gradient_bytes)
        if job.gauges is not None:
            self._gauge(job.gauges, worker, ready)
        self.mean_s += 0.05 * (ready.compute_s - self.mean_s)
        base = min(ready.versions)
        verdict = admit(job.pace, norm=ready.norm, base=base, version=job.version, floor=job.floor)
        job.members.move(worker, ASKING)
        if job.pace.max_lead is not None:
            job.progress.answered(worker.id)
        if not verdict.ok:
            self._refuse(worker, ready, verdict.reason)
        elif self.folds.accept(worker, ready, base):
            self._fold()
        if worker.phase is ASKING:
            self.ask(worker)

    def _is_founded(self, worker: Worker, ready: Ready) -> bool:
        """Whether the gradient is of what the worker was let start."""
        return worker.phase is COMPUTING and ready.samples > 0 and list(ready.positions) == worker.started

    def _refuse(self, worker: Worker, ready: Ready, reason: str) -> None:
        job = self.job
        worker.refused = reason
        worker.started.clear()
        worker.not_finite = worker.not_finite + 1 if reason == "not finite" else 0
        worker.stale = worker.stale + 1 if reason == "stale" else 0
        job.accounts.refuse(worker.id)
        job.note("refuse", worker=worker.id, step=ready.step, reason=reason)
        if worker.not_finite >= NOT_FINITE_IN_A_ROW:
            in_a_row = f"{worker.not_finite} gradients in a row that were not finite"
            job.divergence = f"worker {worker.id} pushed {in_a_row}, the last in step {ready.step}"
        if worker.stale == REFUSED_TOO_OFTEN and worker.id not in self._advised:
            self._advised.add(worker.id)
            advice = "bound its lead instead, for example with --pace ssp:3"
            job.warn(f"worker {worker.id} was refused {worker.stale} times in a row as too stale; {advice}")
        self.leases.refused(ready.positions, not_finite=reason == "not finite")

    # --- starting -----------------------------------------------------------------------------------------

    def begin(self, worker: Worker, _: Begin) -> None:
        """A worker wants to compute: on the first entry of a step, or on a further one of the step in hand."""
        if worker.phase is COMPUTING:
            self._go_further(worker)
            return
        if self.epochs.is_uncounted and not worker.left_epoch:
            worker.is_open = True
        self.job.progress.enter(worker.id)
        self.job.members.move(worker, ASKING)
        self.ask(worker)

    def ask(self, worker: Worker) -> None:
        """May it start? If not, it waits; whoever changes the reason asks again."""
        job = self.job
        bound = self.lead_of(worker.id)
        lead = 0 if bound is None else job.progress.lead(worker.id)
        verdict = may_start(job.pace, lead=lead, has_pending=worker.num_pending > 0, max_lead=bound)
        if verdict.ok and self.routes.may_start(worker):
            self._start(worker)
            return
        job.members.move(worker, WAITING)
        self.leases.recount(worker)
        worker.since_s = job.now_s
        self.waiting[worker.id] = worker
        if verdict is UNTIL_SLOWEST and bound is not None:
            job.progress.block(worker.id, bound)

    def _start(self, worker: Worker) -> None:
        job, leases = self.job, self.leases
        self.waiting.pop(worker.id, None)
        work, leased = leases.take_next(worker)
        in_place = work and job.pace.reads_in_place
        if work:
            worker.since_s = job.now_s
            job.members.move(worker, COMPUTING, in_place=in_place)
            if not worker.counted:
                job.members.count(worker)
        else:
            job.members.move(worker, RESTING)
            job.progress.rest(worker.id)
        if not (work and worker.holds):
            leases.recount(worker)
        pace = None
        if worker.told_pace != job.num_paces:
            pace, worker.told_pace = job.pace, job.num_paces
        cuts = leases.cuts(leased) if leased else ()
        recalled = leases.take_recalled(worker) if worker.recalled else ()
        refused, worker.refused = worker.refused, ""
        start = Start(
            worker.next_step, job.version, work, in_place, leased, cuts, recalled, refused, self.epochs.clock, pace, bool(job.stopping)
        )
        job.outbox.append(Send(worker.address, start))

    def _go_further(self, worker: Worker) -> None:
        """One more entry of the step in hand, if there is one; how the worker reads does not change within a step."""
        job, leases = self.job, self.leases
        work, leased = leases.take_next(worker)
        worker.since_s = job.now_s
        start = Start(
            step=worker.next_step,
            at_least=job.version,
            work=work,
            in_place=worker.in_place,
            leased=leased,
            cuts=leases.cuts(leased),
            recalled=leases.take_recalled(worker),
            clock=self.epochs.clock,
            stop=bool(job.stopping),
        )
        job.tell(worker, start)

    def removed(self, worker: Worker) -> None:
        """A member is gone: nobody asks for it any more, and what a group would have read in its memory is in no update."""
        if worker.id in self.job.group:
            self.folds.give_up()
            for one in [one for one in self.job.pending if one.owner is worker]:
                self.folds.take_back(one, LOST)
        self.waiting.pop(worker.id, None)
        self.leads.pop(worker.id, None)
        self.job.progress.remove(worker.id)

    # --- updates and the pace -----------------------------------------------------------------------------

    def settle(self) -> None:
        """After any event: let go who waited for the slowest, fold what is due by quorum or because nothing more can come."""
        job = self.job
        while True:
            if self.change is not None and not job.pending and self._may_make(self.change):
                self._ask_all(self._make(self.change))
            while job.progress.num_blocked and (free := job.progress.unblocked()):
                # one of them may find nothing to start on, come to rest, and so let others go
                self._ask_all([self.waiting.get(number) for number in free])
            if not job.pending or not (self.folds.due() or (self.change is not None and self.folds.may_make)):
                return
            self._fold()

    def part_norm(self, sender: Address, part: PartNorm) -> None:
        """A part of an update's norms; when a vote is over so, those who waited for it go on."""
        if self.folds.part_norm(sender, part):
            self.routes.summed()
            self.ask_again()

    def ask_again(self) -> None:
        """Ask for everyone who waits: what held them up may be over."""
        self._ask_all(list(self.waiting.values()))

    def _fold(self) -> None:
        """Make an update and, when one is asked for, the change of pace after it; those who waited for either are asked."""
        members = self.folds.make()
        if self.change is not None and not self.job.pending and self._may_make(self.change):
            self._ask_all(self._make(self.change))
        elif self.job.pace.distinct:
            self._ask_all([one.owner for one in members])

    def _ask_all(self, workers: list[Worker | None]) -> None:
        for worker in workers:
            if worker is not None and worker.phase is WAITING:
                self.ask(worker)

    def flush(self) -> bool:
        """Fold what is pending before something else is ordered, unless somebody computes in place. False: a group folds it yet."""
        if self.job.pending and self.folds.may_make:
            self._fold()
        return self.folds.is_open

    def ask_for(self, change: Change) -> None:
        """Ask for another pace. What is pending is folded under the old one first, once nobody computes in place."""
        self.change = change

    def forget_kept(self) -> None:
        """The script has replaced the state: what was kept is nothing to go back to, also not in the change that is asked for."""
        self.job.kept = None
        if self.change is not None:
            self.change = self.change._replace(restores=False)

    def lead_of(self, worker: int) -> int | None:
        """How far `worker` may be ahead of the slowest."""
        bound = self.job.pace.max_lead
        return bound if bound is None else self.leads.get(worker, bound)

    def set_lead(self, worker: Worker, lead: int) -> None:
        """Between two updates: another bound for one worker, who is asked again if it waits."""
        self.leads[worker.id] = lead
        self.job.note("lead", worker=worker.id, lead=lead, version=self.job.version)
        self._ask_all([worker])

    def _may_make(self, change: Change) -> bool:
        """Going back writes the shards, on which nobody may compute meanwhile."""
        in_place = change.restores and self.job.members.crowd.in_place
        return not in_place and self.routes.may_change(change.pace, at_servers=change.keeps or change.restores)

    def _make(self, change: Change) -> list[Worker | None]:
        """Put the next pace in force, all leads at 0; returns those whom it may let go on."""
        job, self.change = self.job, None
        if change.restores:
            self._restore(change)
        place = {"version": job.version, "samples": job.accounts.samples}
        job.note("pace", **{"from": job.pace.name, "to": change.pace.name, "why": change.why, **place})
        job.kept = Since() if change.keeps else None
        if change.keeps:
            # before the momentum may be set to zero
            job.order(Keep(job.version))
        job.order(SetPace(job.version, change.pace, change.ramp_updates))
        job.pace = change.pace
        job.num_paces += 1
        job.accounts.moves += 1
        job.progress.reset()
        self.leads.clear()
        self.folds.grace_until_s = None
        if job.gauges is not None:
            job.gauges.moved()
        return list(self.waiting.values())

    def _restore(self, change: Change) -> None:
        """The shards take back what they kept: a version of its own, and what was folded since is undone."""
        job, kept = self.job, self.job.kept
        assert kept is not None
        job.version += 1
        job.floor = job.version
        job.order(Restore(job.version))
        undone = self.epochs.undo(kept)
        names = {"from": job.pace.name, "to": change.pace.name, "why": change.why}
        job.note("restore", version=job.version, samples=job.accounts.samples, undone=undone, **names)

    def _gauge(self, gauges: Gauges, worker: Worker, ready: Ready) -> None:
        gauges.stepped(
            worker.id,
            compute_s=ready.compute_s,
            wait_s=ready.wait_s,
            exchange_s=ready.exchange_s,
            samples=ready.samples,
            now_s=self.job.now_s,
        )
        gauges.hyper(ready.hyper)
