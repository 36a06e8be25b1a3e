"""The coordinator: one total order of updates, decided here and nowhere else.

A pure state machine: messages and times in, effects out. Its parts: `Enrolment` lets members in, `Epochs` and `Leases`
hand out samples, `Steps` answers gradients and changes the pace, `Folds` makes updates, `Moves` asks the policy, `Meetings`,
`Patience` and `Ending` are what they say. This module hands each message to its part and lets members go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.logic.membership import COMPUTING, Worker
from paceline.logic.policies.policy import Policy
from paceline.messages import (
    Address,
    AtEnd,
    Attached,
    Begin,
    Broken,
    Bye,
    Convened,
    Drawn,
    Enter,
    Failed,
    Finished,
    Formed,
    GiveBack,
    Gone,
    Halt,
    Handed,
    Hello,
    LeaseRequest,
    Leaving,
    Load,
    Log,
    Measured,
    Meet,
    Message,
    NotFinite,
    PartNorm,
    Progress,
    Ready,
    Seeded,
    ServerHello,
    Serving,
    SnapshotRequest,
    StopRun,
)
from paceline.pace import Pace, check_pace
from paceline.roles.effects import Effect, JobSettings
from paceline.roles.ending import Ending
from paceline.roles.enrolment import Enrolment, Forming
from paceline.roles.epochs import Epochs, Stage
from paceline.roles.folds import Folds
from paceline.roles.job import Job
from paceline.roles.meetings import Meetings
from paceline.roles.moves import Moves
from paceline.roles.patience import Patience
from paceline.roles.routes import Routes
from paceline.roles.steps import Change, Steps
from paceline.roles.wishes import Wishes


class Coordinator:
    """Feed it with `handle`, `left` and `expire`; carry out what they return, in order.

    `policy` stands in for the one that the settings' hybrid names.
    """

    def __init__(self, settings: JobSettings, now_s: float = 0.0, *, policy: Policy | None = None) -> None:
        self.job = Job(settings, now_s)
        self.epochs = Epochs(self.job)
        self.enrolment = Enrolment(self.job, self.epochs)
        self.folds = Folds(self.job, self.epochs)
        self.routes = Routes(self.job, self.folds)
        self.steps = Steps(self.job, self.epochs, self.folds, self.routes)
        self.moves = Moves(self.job, self.epochs, self.steps, policy)
        self.meetings = Meetings(self.job)
        self.patience = Patience(self.job, self.epochs, self.folds, self.steps, self.meetings)
        self.wishes = Wishes(self.job, self.epochs, self.steps, self.moves)
        self.ending = Ending(self.job)
        self._from_worker: dict[type[Message], Callable[[Worker, Any], None]] = {
            Ready: self.steps.ready,
            PartNorm: lambda worker, message: self.steps.part_norm(worker.address, message),
            Measured: lambda _, message: self.moves.measured(message),
            NotFinite: lambda _, message: self.moves.not_finite(message),
            Begin: self.steps.begin,
            Enter: self.epochs.enter,
            Drawn: self.epochs.drawn,
            LeaseRequest: self.epochs.lease,
            GiveBack: self.epochs.give_back,
            AtEnd: self.epochs.at_end,
            Meet: self.meetings.meet,
            Log: self.wishes.log,
            Seeded: self.enrolment.seeded,
            Attached: self.enrolment.attached,
            SnapshotRequest: self.wishes.snapshot,
            Load: self.wishes.load,
            StopRun: self.wishes.stop,
            Convened: self.routes.convened,
            Formed: self.routes.formed,
            Broken: self.routes.broken,
            Handed: self.routes.handed,
            Leaving: self._leaving,
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
            if (act := self._from_worker.get(type(message))) is None:
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
        self.epochs.warn_if_amid(worker)
        self._remove(worker, "done")

    def _leaving(self, worker: Worker, message: Leaving) -> None:
        self.epochs.warn_if_amid(worker)
        if self.epochs.is_amid(worker) or worker.phase is COMPUTING:
            self.epochs.give_back(worker, GiveBack(self.epochs.index))
        self.routes.leaving(worker, message)

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
        self.routes.expire()
        self._settle()
        self.patience.expire()
        self.ending.expire()
        return self.job.take_outbox()

    @property
    def deadline_s(self) -> float:
        """When `expire` wants to be called next."""
        others = (self.folds.grace_until_s, self.epochs.leases.grants_by_s, self.routes.due_s)
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
        """After any event: what it may have made possible, unless that was the end."""
        if self.job.ended:
            return
        if self.job.divergence:
            self.moves.diverged(self.job.divergence)
            self.job.divergence = ""
        if self.moves.has_begun:
            self.moves.settle()
        elif self.enrolment.forming is Forming.BEGUN:
            self.moves.begin()
        if self.steps.change is None and self.routes.frees():
            self.steps.ask_again()
        self.steps.settle()
        change = self.steps.change
        if self.routes.settle(change and (change.pace, change.keeps or change.restores), somebody_waits=bool(self.steps.waiting)):
            self.steps.settle()
        if self.routes.frees():
            self.steps.ask_again()
        self.wishes.settle()
        self.epochs.leases.grant_first()
        self.epochs.check_over()
        if self.meetings.open and not self.wishes.is_loading:
            self.meetings.settle()
        self.ending.settle()

    # --- servers ------------------------------------------------------------------------------------------

    def _from_server(self, sender: Address, message: Message) -> None:
        match message:
            case ServerHello(pid=pid, host=host):
                self.enrolment.server_hello(sender.id, pid, host)
            case Serving():
                self.enrolment.serving(sender.id)
            case PartNorm():
                self.steps.part_norm(sender, message)
            case Measured():
                self.moves.measured(message)
            case NotFinite():
                self.moves.not_finite(message)
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
            job.tell_servers(Gone(worker.id, worker.incarnation))
        self.enrolment.left(worker)
        self.routes.left(worker)
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
