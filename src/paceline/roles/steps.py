"""The coordinator's part that answers steps: who is refused, who waits and for what, who goes on. It moves the pace.

Nothing here scans the members: who waits for an update is asked again when his gradient is folded, who waits for the
slowest when that one has gone on.
"""

from __future__ import annotations

from paceline.logic.gate import UNTIL_SLOWEST, admit, may_start
from paceline.logic.membership import ASKING, COMPUTING, RESTING, WAITING, Worker
from paceline.messages import Begin, Ready, Start
from paceline.pace import Pace
from paceline.roles.effects import Send
from paceline.roles.epochs import Epochs
from paceline.roles.folds import Folds
from paceline.roles.job import Job

NOT_FINITE_IN_A_ROW = 10
REFUSED_TOO_OFTEN = 3


class Steps:
    """`waiting` are the members that asked to start and may not yet; `mean_s` is what a step takes of late."""

    def __init__(self, job: Job, epochs: Epochs, folds: Folds) -> None:
        self.job, self.epochs, self.leases, self.folds = job, epochs, epochs.leases, folds
        self.waiting: dict[int, Worker] = {}
        self.mean_s = 0.0
        self._next_pace: tuple[Pace, str] | None = None

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
        self.mean_s += 0.05 * (ready.compute_s - self.mean_s)
        base = min(ready.versions)
        verdict = admit(job.pace, norm=ready.norm, base=base, version=job.version)
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
            job.end(1, f"worker {worker.id} pushed {in_a_row}, the last in step {ready.step}")
            return
        if worker.stale == REFUSED_TOO_OFTEN:
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
        lead = 0 if job.pace.max_lead is None else job.progress.lead(worker.id)
        verdict = may_start(job.pace, lead=lead, has_pending=worker.num_pending > 0)
        if verdict.ok:
            self._start(worker)
            return
        job.members.move(worker, WAITING)
        self.leases.recount(worker)
        worker.since_s = job.now_s
        self.waiting[worker.id] = worker
        if verdict is UNTIL_SLOWEST:
            job.progress.block(worker.id)

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
        """A member is gone: nobody asks for it any more."""
        self.waiting.pop(worker.id, None)
        self.job.progress.remove(worker.id)

    # --- updates and the pace -----------------------------------------------------------------------------

    def settle(self) -> None:
        """After any event: let go who waited for the slowest, fold what is due by quorum or because nothing more can come."""
        job = self.job
        while True:
            if self._next_pace is not None and not job.pending:
                self._ask_all(self._change_pace())
            if job.progress.num_blocked:
                self._ask_all([self.waiting.get(number) for number in job.progress.unblocked(job.pace.max_lead)])
            if not job.pending or not (self.folds.due() or (self._next_pace is not None and not job.members.crowd.in_place)):
                return
            self._fold()

    def _fold(self) -> None:
        """Make an update and, when one is asked for, the change of pace after it; those who waited for either are asked."""
        members = self.folds.make()
        if self._next_pace is not None:
            self._ask_all(self._change_pace())
        elif self.job.pace.distinct:
            self._ask_all([one.owner for one in members])

    def _ask_all(self, workers: list[Worker | None]) -> None:
        for worker in workers:
            if worker is not None and worker.phase is WAITING:
                self.ask(worker)

    def flush(self) -> None:
        """Fold what is pending before something else is ordered, unless somebody computes in place."""
        if self.job.pending and not self.job.members.crowd.in_place:
            self._fold()

    def next_pace(self, pace: Pace, why: str) -> None:
        """Ask for another pace. What is pending is folded under the old one first, once nobody computes in place."""
        self._next_pace = (pace, why)

    def _change_pace(self) -> list[Worker | None]:
        """Put the next pace in force, all leads at 0; returns those whom it may let go on."""
        assert self._next_pace is not None
        job, (pace, why) = self.job, self._next_pace
        self._next_pace = None
        job.note("pace", **{"from": job.pace.name, "to": pace.name, "why": why})
        job.pace = pace
        job.num_paces += 1
        job.accounts.moves += 1
        job.progress.reset()
        self.folds.grace_until_s = None
        return list(self.waiting.values())
