"""The coordinator: one total order of updates, decided here and nowhere else.

A pure state machine: messages and times in, effects out. Its parts: `Enrolment` lets members in, `Epochs` and `Leases`
hand out samples, `Steps` answers gradients and changes the pace, `Folds` makes updates, `Moves` asks the policy, `Meetings`,
`Patience` and `Ending` are what they say. This module hands each message to its part and lets members go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.logic.membership import Worker
from paceline.logic.policies.policy import Policy
from paceline.messages import (
    Address,
    AtEnd,
    Attached,
    Begin,
    Bye,
    Drawn,
    Enter,
    Failed,
    Finished,
    GiveBack,
    Gone,
    Halt,
    Hello,
    LeaseRequest,
    Load,
    Log,
    Measured,
    Meet,
    Message,
    NotFinite,
    PartNorm,
    Progress,
    Ready,
    Restate,
    Seeded,
    ServerHello,
    Serving,
    Snapshot,
    SnapshotRequest,
    StopRun,
)
from paceline.pace import Pace, check_pace
from paceline.roles.effects import Effect, JobSettings, Metrics
from paceline.roles.ending import Ending
from paceline.roles.enrolment import Enrolment, Forming
from paceline.roles.epochs import Epochs, Stage
from paceline.roles.folds import Folds
from paceline.roles.job import Job
from paceline.roles.meetings import Meetings
from paceline.roles.moves import Moves
from paceline.roles.patience import Patience
from paceline.roles.steps import Change, Steps


class Coordinator:
    """Feed it with `handle`, `left` and `expire`; carry out what they return, in order.

    `policy` stands in for the one that the settings' hybrid names.
    """

    def __init__(self, settings: JobSettings, now_s: float = 0.0, *, policy: Policy | None = None) -> None:
        self.job = Job(settings, now_s)
        self.epochs = Epochs(self.job)
        self.enrolment = Enrolment(self.job, self.epochs)
        self.folds = Folds(self.job, self.epochs)
        self.steps = Steps(self.job, self.epochs, self.folds)
        self.moves = Moves(self.job, self.epochs, self.steps, policy)
        self.meetings = Meetings(self.job)
        self.patience = Patience(self.job, self.epochs, self.folds, self.steps, self.meetings)
        self._num_snapshots = 0
        self.ending = Ending(self.job)
        self._from_worker: dict[type[Message], Callable[[Worker, Any], None]] = {
            Ready: self.steps.ready,
            Begin: self.steps.begin,
            Enter: self.epochs.enter,
            Drawn: self.epochs.drawn,
            LeaseRequest: self.epochs.lease,
            GiveBack: self.epochs.give_back,
            AtEnd: self.epochs.at_end,
            Meet: self.meetings.meet,
            Log: self._log,
            Seeded: self.enrolment.seeded,
            Attached: self.enrolment.attached,
            SnapshotRequest: self._snapshot,
            Load: self._load,
            StopRun: self._stop,
            Bye: self._bye,
            Failed: lambda _, message: self.job.end(message.code, message.sentence),
        }

    # --- what comes in ------------------------------------------------------------------------------------

    def handle(self, sender: Address, message: Message, now_s: float) -> list[Effect]:
        """A message from a peer; one from a worker that is no member is answered by nothing."""
        job = self.job
        job.now_s = job.heard_s = now_s
        if job.ended:
            return []
        if sender.role == "server":
            self._from_server(sender, message)
        elif (worker := job.members.workers.get(sender.id)) is not None and not isinstance(message, Hello):
            act = self._from_worker.get(type(message))
            if act is None:
                job.end(4, f"{sender} sent {type(message).__name__}, which no worker sends")
            else:
                act(worker, message)
                self._settle()
        elif isinstance(message, Hello):
            self._hello(worker, sender, message)
        elif isinstance(message, Bye):
            self.enrolment.absent(sender.id)
        return job.take_outbox()

    def _hello(self, known: Worker | None, sender: Address, hello: Hello) -> None:
        """A worker wants to join; one that was started again takes the place of the one that was."""
        if self.ending.has_begun:
            self.job.send(sender, Halt(0, "the run has ended without this worker"))
            return
        if known is not None and known.incarnation != hello.incarnation:
            self._lose(known, "it was started again")
            known = None
        if known is None and not self.job.ended:
            self.enrolment.hello(sender.id, hello)

    def left(self, who: Address, reason: str, now_s: float) -> list[Effect]:
        """A process is gone: a worker's leave, or the end when it was a server."""
        self.job.now_s = now_s
        if self.job.ended:
            return []
        if who.role == "server":
            self._server_left(who, reason)
        elif (worker := self.job.members.workers.get(who.id)) is not None:
            self._lose(worker, reason)
        elif not self.job.said_bye:
            self.enrolment.missed(who.id, reason)
        return self.job.take_outbox()

    def _bye(self, worker: Worker, _: Bye) -> None:
        if self.epochs.is_amid(worker):
            self.job.warn(f"worker {worker.id}'s script ended in the middle of epoch {self.epochs.index}; its samples go to the others")
        self._remove(worker, "done")

    def _lose(self, worker: Worker, reason: str) -> None:
        self.job.accounts.lost.append(worker.id)
        self._remove(worker, reason)
        self._settle()

    def expire(self, now_s: float) -> list[Effect]:
        """A deadline may have passed."""
        self.job.now_s = now_s
        if self.job.ended:
            return []
        self.enrolment.expire()
        self.epochs.leases.grant_first()
        self._settle()
        self.patience.expire()
        self.ending.expire()
        return self.job.take_outbox()

    @property
    def deadline_s(self) -> float:
        """When `expire` wants to be called next."""
        others = (self.folds.grace_until_s, self.epochs.leases.grants_by_s)
        return min([self.patience.due_s, *(other for other in others if other is not None)])

    def set_pace(self, pace: Pace, why: str, now_s: float) -> list[Effect]:
        """Change the pace between two updates: what is pending is folded under the old one, leads go to 0.

        While workers still compute on the shards' own memory nothing may be folded: then their update comes first.
        Raises ConfigError for a pace that cannot work with this job's workers.
        """
        job = self.job
        job.now_s = now_s
        for sentence in check_pace(pace, job.settings.num_workers):
            job.warn(sentence)
        self.steps.ask_for(Change(pace, why))
        job.warn_if_clipped(pace)
        self._settle()
        return job.take_outbox()

    def advised(self, number: int, pace: Pace | None, why: str, error: str, now_s: float) -> list[Effect]:
        """The answer of the user's policy to Consult `number`; `error` says how it failed, else empty."""
        self.job.now_s = now_s
        if not self.job.ended:
            self.moves.advised(number, pace, why, error)
            self._settle()
        return self.job.take_outbox()

    def _settle(self) -> None:
        """After any event: what it may have made possible."""
        if self.job.divergence:
            self.moves.diverged(self.job.divergence)
            self.job.divergence = ""
        if self.moves.has_begun:
            self.moves.settle()
        elif self.enrolment.forming is Forming.BEGUN:
            self.moves.begin()
        self.steps.settle()
        self.epochs.check_over()
        if self.meetings.open:
            self.meetings.settle()
        self.ending.settle()

    # --- what the script asks for -------------------------------------------------------------------------

    def _log(self, worker: Worker, message: Log) -> None:
        self.job.accounts.logged(worker.id, message.metrics, message.weight)
        self.moves.logged(message)
        self.job.outbox.append(Metrics(worker.id, message.metrics, message.epoch, self.job.accounts.samples, message.weight))

    def _snapshot(self, worker: Worker, message: SnapshotRequest) -> None:
        self._num_snapshots += 1
        self.job.order(Snapshot(worker.id, worker.incarnation, self._num_snapshots, message.optimizer))

    def _load(self, worker: Worker, message: Load) -> None:
        if worker.epoch < worker.first_epoch:
            self.job.warn(f"worker {worker.id} joined late and loads a state before its first epoch: passed over, it takes the run's")
            return
        self.steps.flush()
        self.job.version += 1
        self.steps.forget_kept()
        self.job.note("load", version=self.job.version, worker=worker.id)
        self.job.order(Restate(self.job.version, message.has_parameters, message.has_optimizer_state))

    def _stop(self, worker: Worker, message: StopRun) -> None:
        if not self.job.stopping:
            self.job.stopping = f"worker {worker.id}: {message.why}"
            self.epochs.leases.close()

    # --- servers ------------------------------------------------------------------------------------------

    def _from_server(self, sender: Address, message: Message) -> None:
        match message:
            case ServerHello(pid=pid, host=host):
                self.enrolment.server_hello(sender.id, pid, host)
            case Serving():
                self.enrolment.serving(sender.id)
            case PartNorm():
                self.folds.part_norm(message)
            case Measured():
                self.moves.measured(message)
            case NotFinite(version=version, parameter=name):
                if version >= self.job.floor:
                    self.job.divergence = f"parameter {name} is not finite after update {version}; the learning rate may be too high"
                self._settle()
            case Finished():
                self.ending.finished(sender)
            case Failed(code=code, sentence=sentence):
                self.job.end(code, sentence)
            case _:
                self.job.end(4, f"{sender} sent {type(message).__name__}, which no server sends")

    def _server_left(self, who: Address, reason: str) -> None:
        if self.job.model is not None and who not in self.job.servers:
            self.ending.finished(who)  # it holds no shard
        elif not self.ending.has_finished(who):
            lost = "its parameters and optimizer state are gone with it"
            self.job.end(4, f"{who} was lost ({reason}): {lost}, so the run ends after update {self.job.version}")

    # --- leaving and ending -------------------------------------------------------------------------------

    def _remove(self, worker: Worker, reason: str) -> None:
        job = self.job
        job.note("leave", role="worker", id=worker.id, worker=worker.id, reason=reason)
        job.said_bye = job.said_bye or reason == "done"
        self.steps.removed(worker)
        self.moves.left(worker)
        job.members.remove(worker)
        if worker.welcomed and not worker.num_pending:
            job.order(Gone(worker.id, worker.incarnation))
        self.enrolment.left(worker)
        self.epochs.left(worker)
        self.meetings.left(worker)
        # a stopped run owes nobody the rest of an epoch, which a late joiner may even have opened after the stop
        has_work = self.epochs.stage is Stage.OPEN and not job.stopping
        if not job.members.workers and reason != "done" and (not job.said_bye or has_work):
            job.end(4, f"worker {worker.id}, the last one, was lost: {reason}")
        job.warn_if_clipped(job.pace)

    # --- what is shown ------------------------------------------------------------------------------------

    def status(self) -> Progress:
        """The run at a glance."""
        job, epochs = self.job, self.epochs
        return Progress(
            job.pace.name,
            job.version,
            job.accounts.samples,
            epochs.index,
            epochs.folded,
            epochs.num_samples,
            job.accounts.loss,
            job.accounts.mean_staleness(),
            len(job.members.workers),
            self.patience.late(),
            self.enrolment.forming is Forming.BEGUN,
            tuple(sorted(self.moves.parts.items())),
        )

    def summary(self) -> dict[str, object]:
        """What the coordinator knows of `summary.json`; times are on its own clock."""
        job, books = self.job, self.job.accounts
        if job.ended:
            self.epochs.book()
        return {
            "pace": job.pace.name,
            "workers": job.settings.num_workers,
            "servers": job.settings.num_servers,
            "shards": len(job.servers),
            "start_s": (job.now_s if books.first_s is None else books.first_s) - job.started_s,
            **books.summary(),
        }
