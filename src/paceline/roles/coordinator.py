"""The coordinator: one total order of updates, decided here and nowhere else.

A pure state machine: messages and times in, effects out. `Epochs` leases samples, `Enrolment` lets members in; this
module answers steps, makes folds, changes the pace, and ends the job. Nothing here scans the members per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.logic.fold import Pending, absent_in_all, gathered_weight, weigh
from paceline.logic.gate import Crowd, admit, fold_due, may_start, quorum_in_force
from paceline.logic.membership import Phase, Worker
from paceline.logic.weighting import lr_factor, lr_rule_of, omega
from paceline.messages import (
    Accept,
    Address,
    AtEnd,
    Attached,
    Begin,
    Bye,
    Drawn,
    Enter,
    Factor,
    Failed,
    Finish,
    Finished,
    Fold,
    GiveBack,
    Gone,
    Hello,
    LeaseRequest,
    Load,
    Log,
    Meet,
    Member,
    Message,
    Met,
    NotFinite,
    PartNorm,
    Ready,
    Restate,
    Seeded,
    ServerHello,
    Serving,
    Snapshot,
    SnapshotRequest,
    Start,
    StopRun,
)
from paceline.pace import Pace, check_pace
from paceline.roles.effects import Effect, JobSettings, Metrics
from paceline.roles.enrolment import Enrolment, Forming
from paceline.roles.epochs import Epochs, Stage
from paceline.roles.job import Job

NOT_FINITE_IN_A_ROW = 10
REFUSED_TOO_OFTEN = 3
STUCK_STEPS = 20
"""A step that takes so many times the mean step, and more than the patience, is stuck when somebody waits for it."""
EVALUATION_PATIENCES = 10
"""How many patiences a worker between leases may take while others wait for it."""
CLIP_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


class Status(NamedTuple):
    """The run at a glance, for the progress line. `epoch_samples` is 0 when unknown."""

    pace: str
    version: int
    samples: int
    epoch: int
    epoch_folded: int
    epoch_samples: int
    loss: float | None
    staleness: float
    num_workers: int
    waiting_for: tuple[int, ...]
    begun: bool


class Meeting:
    """Members under one key, with the values they brought; `epoch` is where the first of them was (-1: before any)."""

    def __init__(self, since_s: float, epoch: int) -> None:
        self.since_s, self.epoch = since_s, epoch
        self.brought: dict[int, tuple[tuple[float, ...], float]] = {}


class Coordinator:
    """Feed it with `handle`, `left` and `expire`; carry out what they return, in order."""

    def __init__(self, settings: JobSettings, now_s: float = 0.0) -> None:
        self.job = Job(settings)
        self.epochs = Epochs(self.job)
        self.enrolment = Enrolment(self.job, self.epochs)
        self._started_s = now_s
        self._now_s = now_s
        self._lr_factor: float | None = None
        self._hyper: dict[int, bytes] = {}
        self._sent_hyper = b""
        self._next_pace: tuple[Pace, str] | None = None
        self._grace_until_s: float | None = None
        self._norms: dict[int, tuple[int, float, float]] = {}
        self._norms_since_s = 0.0
        self._meetings: dict[str, Meeting] = {}
        self._failures: dict[tuple[int, ...], int] = {}
        self._waiting: dict[int, Worker] = {}
        self._gone: list[Worker] = []
        self._requests = 0
        self._finishing_s: float | None = None
        self._finished: set[int] = set()
        self._said_bye = False
        self._mean_step_s = 0.0
        self._next_check_s = now_s + self._check_every_s()
        self._handlers: dict[type[Message], Callable[[Worker, Any], None]] = {
            Ready: self._ready,
            Begin: self._begin,
            Enter: self.epochs.enter,
            Drawn: lambda worker, message: self.epochs.drawn(worker, message, self._now_s),
            LeaseRequest: lambda worker, message: self.epochs.lease(worker, message, self._now_s),
            GiveBack: self.epochs.give_back,
            AtEnd: self.epochs.at_end,
            Meet: self._meet,
            Log: self._log,
            Seeded: lambda worker, message: self.enrolment.seeded(worker, message.has_optimizer_state),
            Attached: lambda worker, message: self.enrolment.attached(worker, self._now_s),
            SnapshotRequest: self._snapshot,
            Load: self._load,
            StopRun: lambda worker, message: self._stop(f"worker {worker.id}: {message.why}"),
            Bye: lambda worker, message: self._remove(worker, "done"),
            Failed: lambda worker, message: self.job.end(message.code, message.sentence),
        }

    # --- what comes in ------------------------------------------------------------------------------------

    def handle(self, sender: Address, message: Message, now_s: float) -> list[Effect]:
        """A message from a peer; one from a worker that is no member is answered by nothing."""
        self._now_s = now_s
        if self.job.ended:
            return []
        if sender.role == "server":
            self._from_server(sender, message)
        elif isinstance(message, Hello):
            if sender.id not in self.job.members.workers:
                self.enrolment.hello(sender.id, message, now_s)
        elif (worker := self.job.members.workers.get(sender.id)) is not None:
            self._handlers[type(message)](worker, message)
            self._settle()
        return self._flush()

    def left(self, who: Address, reason: str, now_s: float) -> list[Effect]:
        """A process is gone: a worker's leave, or the end when it was a server."""
        self._now_s = now_s
        if self.job.ended:
            return []
        if who.role == "server":
            self._server_left(who, reason)
        elif (worker := self.job.members.workers.get(who.id)) is not None:
            self.job.accounts.lost.append(worker.id)
            self._remove(worker, reason)
            self._settle()
        elif not self._said_bye and self.enrolment.forming is not Forming.BEGUN:
            self.job.warn(f"{who} was lost before it joined: {reason}")
        return self._flush()

    def expire(self, now_s: float) -> list[Effect]:
        """A deadline may have passed."""
        self._now_s = now_s
        if self.job.ended:
            return []
        if self.enrolment.forming is not Forming.BEGUN and now_s - self._started_s >= self.job.settings.patience_s:
            self.enrolment.overdue(now_s, self._started_s)
        self.epochs.grant_first(now_s)
        self._settle()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + self._check_every_s()
            self._check_deadlines()
        return self._flush()

    @property
    def deadline_s(self) -> float:
        """When `expire` wants to be called next."""
        times = [self._next_check_s]
        if self._grace_until_s is not None:
            times.append(self._grace_until_s)
        if self.epochs.grants_by_s is not None:
            times.append(self.epochs.grants_by_s)
        return min(times)

    def set_pace(self, pace: Pace, why: str, now_s: float) -> list[Effect]:
        """Change the pace between two updates: what is pending is folded under the old one, leads go to 0.

        While workers still compute on the shards' own memory nothing may be folded: then their update comes first.
        """
        self._now_s = now_s
        for sentence in check_pace(pace, self.job.settings.num_workers):
            self.job.warn(sentence)
        self._next_pace = (pace, why)
        self._settle()
        return self._flush()

    def _change_pace(self) -> list[Worker]:
        """Put the next pace in force; returns those whom it may let go on."""
        if self._next_pace is None:
            return []
        job, (pace, why) = self.job, self._next_pace
        job.note("pace", **{"from": job.pace.name, "to": pace.name, "why": why})
        job.pace, self._next_pace, self._lr_factor, self._grace_until_s = pace, None, None, None
        job.num_paces += 1
        job.accounts.moves += 1
        job.progress.reset()
        return list(self._waiting.values())

    def _flush(self) -> list[Effect]:
        outbox, self.job.outbox = self.job.outbox, []
        return outbox

    # --- a step -------------------------------------------------------------------------------------------

    def _ready(self, worker: Worker, ready: Ready) -> None:
        if ready.incarnation != worker.incarnation or ready.step != worker.next_step:
            return
        worker.next_step += 1
        self._book(worker, ready)
        if ready.hyper:
            self._hyper[worker.id] = ready.hyper
        base, version = min(ready.versions), self.job.version
        verdict = admit(self.job.pace, norm=ready.norm, base=base, version=version)
        self.job.members.move(worker, Phase.ASKING)
        self.job.progress.answered(worker.id)
        if verdict.ok:
            self._accept(worker, ready, base)
        else:
            self._refuse(worker, ready, verdict.reason)

    def _book(self, worker: Worker, ready: Ready) -> None:
        accounts, tally = self.job.accounts, self.job.accounts.of(worker.id)
        tally.steps += 1
        tally.compute_s += ready.compute_s
        tally.wait_s += ready.wait_s
        accounts.pushed_bytes += self.job.gradient_bytes
        accounts.pulled_bytes += ready.pulled_bytes
        self._mean_step_s += 0.05 * (ready.compute_s - self._mean_step_s)

    def _accept(self, worker: Worker, ready: Ready, base: int) -> None:
        job = self.job
        worker.not_finite = worker.stale = 0
        if self.epochs.ledger is not None:
            self.epochs.ledger.pend(ready.positions)
        worker.started.clear()
        worker.num_pending += 1
        pending = Pending(
            worker.id, worker.incarnation, ready.step, ready.buffer, ready.samples, base, ready.positions, ready.absent, ready.clip, ready.buffer_samples
        )  # fmt: skip
        job.pending.append(pending)
        self.epochs.recount(worker)
        if not job.pace.distinct and not self._fold_if_due():
            factor = omega(job.pace.weighting, job.version - base)
            weight = gathered_weight(pending, factor)
            job.pending[-1] = pending._replace(gathered=True, omega=factor)
            job.order(Accept(Member(worker.id, worker.incarnation, ready.step, ready.buffer, weight, False, ready.buffer_samples)))
        elif job.pace.distinct:
            self._fold_if_due()
        if worker.phase is Phase.ASKING:
            self._ask(worker)

    def _refuse(self, worker: Worker, ready: Ready, reason: str) -> None:
        self.job.accounts.refused += 1
        self.job.accounts.of(worker.id).refused += 1
        self.job.note("refuse", worker=worker.id, step=ready.step, reason=reason)
        worker.started.clear()
        worker.not_finite = worker.not_finite + 1 if reason == "not finite" else 0
        worker.stale = worker.stale + 1 if reason == "stale" else 0
        if worker.not_finite >= NOT_FINITE_IN_A_ROW:
            self.job.end(1, f"worker {worker.id} pushed {worker.not_finite} gradients in a row that were not finite, the last in step {ready.step}")
            return
        if worker.stale == REFUSED_TOO_OFTEN:
            self.job.warn(f"worker {worker.id} was refused {worker.stale} times in a row as too stale; bound its lead instead, for example with --pace ssp:3")
        if reason == "not finite" and self._failed_too_often(ready.positions):
            self.job.warn(f"batch(es) {', '.join(map(str, ready.positions))} of epoch {self.epochs.index} gave {REFUSED_TOO_OFTEN} gradients that were not finite: skipped")
            assert self.epochs.ledger is not None
            self.epochs.ledger.skip(ready.positions)
        else:
            self.epochs.returned(ready.positions)
        self.epochs.recount(worker)
        self._ask(worker, refused=reason)

    def _failed_too_often(self, positions: tuple[int, ...]) -> bool:
        if self.epochs.ledger is None or not positions:
            return False
        key = (self.epochs.index, *positions)
        self._failures[key] = self._failures.get(key, 0) + 1
        return self._failures[key] >= REFUSED_TOO_OFTEN

    # --- starting -----------------------------------------------------------------------------------------

    def _begin(self, worker: Worker, _: Begin) -> None:
        if worker.phase is Phase.COMPUTING:
            self._start(worker)
            return
        if self.epochs.ledger is None and self.epochs.stage is Stage.OPEN:
            worker.is_open = True
        self.job.progress.enter(worker.id)
        self.job.members.move(worker, Phase.ASKING)
        self.epochs.recount(worker)
        self._ask(worker)

    def _ask(self, worker: Worker, *, refused: str = "") -> None:
        """May it start? If not, it waits; whoever changes the reason asks again."""
        job = self.job
        verdict = may_start(job.pace, lead=job.progress.lead(worker.id), has_pending=worker.num_pending > 0)
        if verdict.ok:
            self._waiting.pop(worker.id, None)
            self._start(worker, refused=refused or worker.waits_for)
            return
        job.members.move(worker, Phase.WAITING)
        worker.since_s = self._now_s
        if refused:
            worker.waits_for = refused
        self._waiting[worker.id] = worker
        if verdict.reason == "lead":
            job.progress.block(worker.id)
        self.epochs.recount(worker)

    def _start(self, worker: Worker, *, refused: str = "") -> None:
        job, epochs = self.job, self.epochs
        worker.waits_for = ""
        further = worker.phase is Phase.COMPUTING
        leased: tuple[int, ...] = ()
        ledger = epochs.ledger
        if ledger is not None and not worker.left_epoch:
            if not ledger.held.get(worker.id):
                leased = epochs.top_up(worker)
            work = bool(ledger.held.get(worker.id))
            if work:
                worker.started.append(ledger.start(worker.id))
        else:
            work = worker.is_open = worker.is_open and not job.stopping
        if work:
            if not worker.counted:
                job.members.count(worker)
                self._lr_factor = None
            job.progress.enter(worker.id)
            job.members.move(worker, Phase.COMPUTING, in_place=worker.in_place if further else job.pace.reads_in_place)
            worker.since_s = self._now_s
            if job.accounts.first_s is None:
                job.accounts.first_s = self._now_s
        elif not worker.started:
            job.members.move(worker, Phase.RESTING)
            job.progress.rest(worker.id)
        epochs.recount(worker)
        pace = None
        if worker.told_pace != job.num_paces:
            pace, worker.told_pace = job.pace, job.num_paces
        job.tell(
            worker,
            Start(
                step=worker.next_step,
                at_least=job.version,
                work=work,
                in_place=worker.in_place,
                leased=leased,
                cuts=epochs.cuts(leased),
                recalled=epochs.take_recalled(worker),
                refused=refused,
                clock=epochs.clock,
                pace=pace,
                stop=bool(job.stopping),
            ),
        )

    # --- a fold -------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """After any event: let go who waited for the slowest, fold what is due by quorum or because nothing more can come."""
        while True:
            if self._next_pace is not None and not self.job.pending:
                for other in self._change_pace():
                    self._ask(other)
            for freed in self.job.progress.unblocked(self.job.pace.max_lead):
                if (other := self._waiting.get(freed)) is not None:
                    self._ask(other)
            if not self._fold_if_due():
                break
        self.epochs.check_over()
        if self._meetings:
            self._close_meetings()
        if self._said_bye and not self.job.members.workers:
            self._finish()

    def _fold_if_due(self) -> bool:
        job = self.job
        if not job.pending:
            return False
        crowd = self._crowd()
        if self._next_pace is not None and not crowd.in_place:
            self._fold()
            return True
        if not fold_due(job.pace, len(job.pending), crowd).ok:
            self._grace_until_s = None
            return False
        if job.pace.grace_s and crowd.computing and (len(job.pending) < crowd.holders or not job.pace.distinct):
            if self._grace_until_s is None:
                self._grace_until_s = self._now_s + job.pace.grace_s
            if self._now_s < self._grace_until_s:
                return False
        self._fold()
        return True

    def _crowd(self) -> Crowd:
        """The members' counts; a dead worker with a pending gradient still holds samples."""
        crowd = self.job.members.crowd()
        return crowd._replace(holders=crowd.holders + len(self._gone)) if self._gone else crowd

    def _fold(self) -> None:
        job = self.job
        pending, job.pending = job.pending, []
        self._grace_until_s = None
        job.version += 1
        assert job.model is not None
        weighed = weigh(job.pace, pending, version=job.version, scales_gradients=job.model.scales_gradients)
        lowest = min(pending)
        hyper = self._hyper.get(lowest.worker, b"")
        hyper, self._sent_hyper = b"" if hyper == self._sent_hyper else hyper, hyper
        absent = absent_in_all([one.absent for one in pending])
        job.order(Fold(job.version, weighed.members, weighed.scale, weighed.lr_factor * self._factor(), hyper, absent, lowest.clip))
        if lowest.clip:
            self._norms[job.version] = (0, 0.0, lowest.clip)
            self._norms_since_s = self._now_s
        self._book_fold(pending, weighed.stalenesses, weighed.members)
        for gone in [worker for worker in self._gone if worker.num_pending == 0]:
            self._gone.remove(gone)
            job.order(Gone(gone.id, gone.incarnation))
        changed = self._change_pace()
        members = [job.members.workers.get(one.worker) for one in pending]
        for worker in changed or members:
            if worker is not None and worker.phase in (Phase.WAITING, Phase.ASKING):
                self._ask(worker)

    def _book_fold(self, pending: list[Pending], stalenesses: tuple[int, ...], members: tuple[Member, ...]) -> None:
        job, epochs = self.job, self.epochs
        num_samples = 0
        for one in pending:
            num_samples += one.samples
            job.accounts.of(one.worker).samples += one.samples
            if epochs.ledger is not None:
                epochs.ledger.fold(one.positions)
            worker = job.members.workers.get(one.worker)
            if worker is not None and worker.incarnation == one.incarnation:
                worker.num_pending -= 1
                epochs.recount(worker)
            for gone in self._gone:
                gone.num_pending -= (gone.id, gone.incarnation) == (one.worker, one.incarnation)
        job.accounts.samples += num_samples
        job.accounts.last_s = self._now_s
        job.accounts.staled(stalenesses)
        epochs.folded += num_samples
        if epochs.ledger is None and not epochs.per_update:
            epochs.per_update = max(1, pending[0].samples * job.settings.num_workers)
        job.note(
            "update",
            version=job.version,
            samples=job.accounts.samples,
            pace=job.pace.name,
            members=[
                {"worker": member.worker, "step": member.step, "staleness": tau, "weight": member.weight}
                for member, tau in zip(members, stalenesses, strict=True)
            ],
        )

    def _factor(self) -> float:
        if self._lr_factor is None:
            job = self.job
            assert job.model is not None
            rule = lr_rule_of(job.pace, job.settings.lr_rule, scales_gradients=job.model.scales_gradients)
            self._lr_factor = lr_factor(job.pace, rule, num_live=max(1, job.members.num_live), num_at_start=job.settings.num_workers)
        return self._lr_factor

    # --- what the script asks for -------------------------------------------------------------------------

    def _meet(self, worker: Worker, message: Meet) -> None:
        meeting = self._meetings.setdefault(message.key, Meeting(self._now_s, worker.epoch))
        meeting.brought[worker.id] = (message.values, message.weight)

    def _missing_at(self, meeting: Meeting) -> list[Worker]:
        """Who has still to come: members that began no later, and have not gone on to a later epoch."""
        return [
            worker
            for worker in self.job.members.workers.values()
            if worker.attached and worker.id not in meeting.brought and worker.first_epoch <= meeting.epoch >= worker.epoch
        ]

    def _close_meetings(self) -> None:
        for key, meeting in list(self._meetings.items()):
            if self._missing_at(meeting):
                continue
            del self._meetings[key]
            present = sorted(meeting.brought)
            brought = [meeting.brought[number] for number in present]
            width = max((len(values) for values, _ in brought), default=0)
            sums = tuple(sum(weight * values[i] for values, weight in brought if i < len(values)) for i in range(width))
            for number in present:
                self.job.tell(self.job.members.workers[number], Met(key, sums, sum(weight for _, weight in brought), self.job.version))

    def _log(self, worker: Worker, message: Log) -> None:
        self.job.accounts.logged(worker.id, message.metrics, message.weight)
        self.job.outbox.append(Metrics(worker.id, message.metrics, message.epoch, self.job.accounts.samples, message.weight))

    def _snapshot(self, worker: Worker, message: SnapshotRequest) -> None:
        self._requests += 1
        self.job.order(Snapshot(worker.id, self._requests, message.optimizer))

    def _load(self, worker: Worker, message: Load) -> None:
        self.job.version += 1
        self.job.note("load", version=self.job.version, worker=worker.id)
        self.job.order(Restate(self.job.version, message.has_parameters, message.has_optimizer_state))

    def _stop(self, why: str) -> None:
        if not self.job.stopping:
            self.job.stopping = why
            self.epochs.stop()

    # --- servers ------------------------------------------------------------------------------------------

    def _from_server(self, sender: Address, message: Message) -> None:
        match message:
            case ServerHello(pid=pid, host=host):
                self.enrolment.server_hello(sender.id, pid, host)
            case Serving():
                self.enrolment.serving(sender.id, self._now_s)
            case PartNorm(version=version, square=square):
                self._part_norm(version, square)
            case NotFinite(version=version, parameter=name):
                self.job.end(1, f"parameter {name} is not finite after update {version}; the learning rate may be too high")
            case Finished():
                self._finished.add(sender.id)
                self._end_if_finished()
            case Failed(code=code, sentence=sentence):
                self.job.end(code, sentence)
            case _:
                self.job.end(4, f"{sender} sent {type(message).__name__}, which no server sends")

    def _part_norm(self, version: int, square: float) -> None:
        count, total, clip = self._norms.get(version, (0, 0.0, 0.0))
        count, total = count + 1, total + square
        if count < len(self.job.servers):
            self._norms[version] = (count, total, clip)
            return
        self._norms.pop(version, None)
        self.job.order(Factor(version, min(1.0, clip / (total**0.5 + CLIP_EPSILON))))

    def _server_left(self, who: Address, reason: str) -> None:
        if who.id in self._finished:
            return
        self.job.end(4, f"{who} was lost ({reason}): its parameters and optimizer state are gone with it, so the run ends after update {self.job.version}")

    # --- leaving and ending -------------------------------------------------------------------------------

    def _remove(self, worker: Worker, reason: str) -> None:
        job = self.job
        job.note("leave", role="worker", id=worker.id, worker=worker.id, reason=reason)
        job.progress.remove(worker.id)
        self._waiting.pop(worker.id, None)
        job.members.remove(worker)
        self._said_bye = self._said_bye or reason == "done"
        self._lr_factor = None
        if worker.num_pending:
            self._gone.append(worker)
        elif worker.welcomed:
            job.order(Gone(worker.id, worker.incarnation))
        self.enrolment.left(worker, self._now_s)
        self.epochs.left(worker, self._now_s)
        for meeting in self._meetings.values():
            meeting.brought.pop(worker.id, None)
        if not job.members.workers and not self._said_bye:
            job.end(4, f"worker {worker.id}, the last one, was lost: {reason}")

    def _finish(self) -> None:
        if self._finishing_s is None:
            self._finishing_s = self._now_s
            self.job.order(Finish())
            self._end_if_finished()

    def _end_if_finished(self) -> None:
        if self._finishing_s is None or len(self._finished) < len(self.job.servers):
            return
        if self.epochs.stage is Stage.OPEN:
            self.epochs.settle()
        if self.job.accounts.samples == 0:
            self.job.end(1, "the run ended without a single update: no sample was folded")
        else:
            self.job.end(0, self.job.stopping)

    # --- deadlines ----------------------------------------------------------------------------------------

    def _check_every_s(self) -> float:
        return max(0.05, min(2.0, self.job.settings.patience_s / 4))

    def _check_deadlines(self) -> None:
        """Nobody waits for ever: find who is waited for, and for how long."""
        job, now_s, patience_s = self.job, self._now_s, self.job.settings.patience_s
        for key, meeting in self._meetings.items():
            if now_s - meeting.since_s > patience_s:
                absent = ", ".join(str(worker.id) for worker in self._missing_at(meeting))
                job.end(5, f"waited {patience_s:g} s for worker(s) {absent} to meet the others at {key}")
                return
        if self._norms and now_s - self._norms_since_s > patience_s:
            job.end(5, f"waited {patience_s:g} s for the servers' norms of update {min(self._norms)}")
        if self._finishing_s is not None and now_s - self._finishing_s > patience_s:
            missing = ", ".join(str(server) for server in job.servers if server.id not in self._finished)
            job.end(5, f"waited {patience_s:g} s for {missing} to finish")
        if self._waiting or self.epochs.line or self.epochs.not_ended():
            self._check_stuck(max(patience_s, STUCK_STEPS * self._mean_step_s))

    def _check_stuck(self, limit_s: float) -> None:
        job = self.job
        for worker in job.members.workers.values():
            silent_s = self._now_s - worker.since_s
            if worker.phase is Phase.COMPUTING and silent_s > limit_s:
                job.end(5, f"waited {limit_s:g} s for worker {worker.id}, which computes step {worker.next_step} since {silent_s:.0f} s; if its steps are that long, raise --patience")
                return
            owed = worker.startable or worker.id in self.epochs.not_ended()
            if worker.phase is Phase.RESTING and owed and worker.attached and self._rested_s(worker) > EVALUATION_PATIENCES * limit_s:
                job.end(5, f"waited {EVALUATION_PATIENCES * limit_s:g} s for worker {worker.id}, which is between leases (an evaluation?); raise --patience")
                return

    def _rested_s(self, worker: Worker) -> float:
        last_s = max(worker.since_s, self.job.accounts.last_s or self._started_s)
        return self._now_s - last_s

    # --- what is shown ------------------------------------------------------------------------------------

    def status(self) -> Status:
        """The run at a glance."""
        job, epochs = self.job, self.epochs
        waiting = bool(self._waiting or epochs.line)
        late = [worker.id for worker in job.members.workers.values() if worker.phase is Phase.COMPUTING] if waiting else []
        total = epochs.ledger.num_samples if epochs.ledger is not None else 0
        counts = job.accounts.stalenesses
        mean = sum(tau * times for tau, times in counts.items()) / max(1, sum(counts.values()))
        return Status(
            job.pace.name, job.version, job.accounts.samples, epochs.index, epochs.folded, total, job.accounts.loss,
            mean, len(job.members.workers), tuple(late), self.enrolment.forming is Forming.BEGUN,
        )  # fmt: skip

    def summary(self) -> dict[str, object]:
        """What the coordinator knows of `summary.json`; times are on its own clock."""
        job, books = self.job, self.job.accounts
        return {
            "pace": job.pace.name,
            "workers": job.settings.num_workers,
            "servers": job.settings.num_servers,
            "samples": books.samples,
            "updates": job.version,
            "wall_s": books.wall_s(),
            "start_s": (books.first_s or self._now_s) - self._started_s,
            "final": books.final(),
            "staleness": books.staleness(),
            "per_worker": {
                str(number): {"samples": one.samples, "steps": one.steps, "refused": one.refused, "compute_s": one.compute_s, "wait_s": one.wait_s}
                for number, one in sorted(books.tallies.items())
            },
            "bytes": {"pushed": books.pushed_bytes, "pulled": books.pulled_bytes},
            "ledger": books.ledgers._asdict(),
            "refused": books.refused,
            "moves": books.moves,
            "lost": books.lost,
        }

    def quorum(self) -> int:
        """How many pending gradients would make an update now."""
        return quorum_in_force(self.job.pace, self._crowd())
