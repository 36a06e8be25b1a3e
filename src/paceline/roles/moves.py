"""The coordinator's part that asks for moves: now and then it reads the gauges, asks the policy and writes down what it said.

It chooses nothing: the policy does, `logic.safety` may hold a choice back or take it back, `Steps` makes the change between
two updates. A user's own policy is asked through `Consult` and answers later, or never.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from paceline.errors import ConfigError
from paceline.hybrid import Hybrid
from paceline.logic import safety
from paceline.logic.gauges import Gauges
from paceline.logic.membership import Worker
from paceline.logic.policies.balance import Balance
from paceline.logic.policies.catalogue import policy_of
from paceline.logic.policies.policy import Decision, Move, Policy
from paceline.logic.sentence import said
from paceline.logic.signals import Signals
from paceline.messages import Keep, Log, Measured, NotFinite
from paceline.pace import Pace, check_pace
from paceline.roles.effects import Consult, Decide
from paceline.roles.epochs import Epochs, Stage
from paceline.roles.job import Job
from paceline.roles.steps import RAMP_SHARE, Change, Steps

EVERY_STEPS = 5
"""The policy is asked once each worker has answered so many steps in the mean."""
EVERY_S, EVERY_PART = 0.2, 1 / 200
"""And not again before so many seconds, nor before this part of the run's time, so that a long run's log stays short."""
OUTCOME_STEPS = 20
"""A prediction is compared with what came when each worker has answered so many steps since the move: in half of them one end of
an epoch, where all begin anew, was a fifth of the rate."""


class Promise(NamedTuple):
    """A prediction that was acted on: of which decision, and the work at the move."""

    number: int
    pace: str
    samples_per_s: float
    num_steps: int


class Moves:
    """`history` are the moves made so far. Nothing happens while neither a policy nor speed shares are wanted."""

    def __init__(self, job: Job, epochs: Epochs, steps: Steps, policy: Policy | None = None) -> None:
        self.job, self.epochs, self.steps = job, epochs, steps
        self.history: list[Move] = []
        self.parts: dict[int, float] = {}
        self.has_begun = False
        self._paces: dict[str, Pace] = {}
        self._hybrid: Hybrid | None = None
        self._policy = policy
        self._num_evaluated = 0
        self._next_steps, self._next_s = 0, 0.0
        self._stage = 0
        self._shares = Balance()
        self._promise: Promise | None = None
        self._consulted: tuple[int, Signals] | None = None

    @property
    def _judges(self) -> bool:
        """Whether dwell, guard and the way back bind what is decided; a user's own policy is obeyed."""
        return self._policy is not None and self._policy.judges

    # --- what is measured ---------------------------------------------------------------------------------

    def logged(self, message: Log) -> None:
        """The script logged something; its loss is a signal."""
        if self.job.gauges is not None and "loss" in message.metrics:
            self.job.gauges.logged(message.metrics["loss"], message.weight)

    def measured(self, message: Measured) -> None:
        """A server measured an update."""
        if self.job.gauges is not None:
            self.job.gauges.measured(
                message.version,
                gradient=message.gradient,
                parameters=message.parameters,
                change=message.change,
                busy_s=message.busy_s,
                num_parts=self.job.num_parts,
            )

    def not_finite(self, message: NotFinite) -> None:
        """A shard turned non-finite, and not in a past that was given up."""
        if message.version >= self.job.floor:
            after = f"is not finite after update {message.version}; the learning rate may be too high"
            self.job.divergence = f"parameter {message.parameter} {after}"

    def left(self, worker: Worker) -> None:
        """A member is gone: it is measured no more and has no part of a batch."""
        self.parts.pop(worker.id, None)
        if self.job.gauges is not None:
            self.job.gauges.left(worker.id)

    # --- when ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The settings are final: measure from now on if anybody wants to know."""
        job, hybrid = self.job, self.job.settings.hybrid
        assert job.model is not None
        self.has_begun = True
        if hybrid is not None:
            self._hybrid = hybrid
            self._policy = self._policy or policy_of(hybrid, job.settings.lr_rule)
        if hybrid is not None or job.settings.shares == "speed":
            job.gauges = Gauges()
            for number in job.members.workers:
                job.gauges.joined(number)

    def settle(self) -> None:
        """After any event: ask the policy if it is time to."""
        job = self.job
        if job.gauges is None or self.steps.change is not None or not job.version:
            return
        if self.epochs.stage is not Stage.OPEN or job.stopping or not self._is_due():
            return
        elapsed_s = job.now_s - (job.now_s if job.accounts.first_s is None else job.accounts.first_s)
        self._next_steps = job.accounts.num_steps + EVERY_STEPS * max(1, len(job.members.workers))
        self._next_s = job.now_s + max(EVERY_S, EVERY_PART * elapsed_s)
        if not self._num_evaluated and self._judges and job.pace.distinct and not job.is_together:
            # the shards allocate what they will keep now, while the run begins, and not at its first move
            job.order(Keep(job.version))
        self._evaluate(job.gauges)

    def _is_due(self) -> bool:
        job, hybrid = self.job, self._hybrid
        if hybrid is not None and self._stage + 1 < len(hybrid.stages):
            total = self.epochs.planned_samples()
            if total is not None and job.accounts.samples >= hybrid.stages[self._stage + 1].share * total:
                self._stage += 1
                return True
        return job.accounts.num_steps >= self._next_steps and job.now_s >= self._next_s

    # --- what ---------------------------------------------------------------------------------------------

    def _evaluate(self, gauges: Gauges) -> None:
        signals = self._read(gauges)
        self._keep_promise(signals)
        self._balance(signals)
        if self._must_go_back(signals) or self._hybrid is None:
            return
        self._num_evaluated += 1
        if self._policy is not None:
            self._weigh(self._policy.decide(signals, tuple(self.history)), signals)
        elif self._consulted is None:
            self._consulted = (self._num_evaluated, signals)
            self.job.outbox.append(Consult(self._num_evaluated, signals, tuple(self.history)))

    def _read(self, gauges: Gauges) -> Signals:
        job = self.job
        assert job.model is not None
        gauges.planned(self.epochs.planned_samples())
        return gauges.read(
            job.pace.name,
            job.version,
            num_at_start=job.settings.num_workers,
            now_s=job.now_s,
            leads={number: job.progress.lead(number) for number in job.members.workers},
            max_leads=self.steps.leads,
            parts=self.parts,
            scales_gradients=job.model.scales_gradients,
            lost=len(job.accounts.lost),
        )

    def advised(self, number: int, pace: Pace | None, why: str, error: str) -> None:
        """What the user's policy answered to `number`; with an `error`, of which the engine tells the user, the pace stays."""
        if self._consulted is None or self._consulted[0] != number:
            return
        signals, self._consulted = self._consulted[1], None
        if pace is not None and not error:
            try:
                check_pace(pace, self.job.settings.num_workers)
            except ConfigError as refused:
                pace, error = None, str(refused)
        self._weigh(Decision(pace, why, said(why)), signals, error=error)

    # --- a decision ---------------------------------------------------------------------------------------

    def _weigh(self, decision: Decision, signals: Signals, *, error: str = "") -> None:
        """Obey the decision or hold it back, and write it down."""
        pace = decision.pace if decision.pace is not None and decision.pace != self.job.pace else None
        leave = safety.Leave(not error, error, said(error))
        if pace is not None and self._judges and leave.ok:
            leave = safety.may_move(signals, self.history)
        if pace is not None and self.steps.change is not None and leave.ok:
            leave = safety.Leave(False, "another change of pace is being made")
        moved = pace is not None and leave.ok
        self._record(decision, signals, leave, moved=moved)
        if moved and pace is not None:
            self._move(pace, decision, signals)
        self._set_leads(decision)
        self._set_parts(dict(decision.shares))

    def _move(self, pace: Pace, decision: Decision, signals: Signals) -> None:
        keeps = self._judges and safety.is_less_sync(self.job.pace, pace, max(1, signals.num_workers))
        self._made(pace, decision.why, signals, predicted=decision.predicted)
        self._promise = None
        if decision.predicted is not None:
            self._promise = Promise(self._num_evaluated, pace.name, decision.predicted, self.job.accounts.num_steps)
        ramp = 0 if signals.updates_left is None else round(RAMP_SHARE * signals.updates_left)
        self.job.warn_if_clipped(pace)
        self.steps.ask_for(Change(pace, decision.why, keeps=keeps, ramp_updates=ramp))

    def _made(self, pace: Pace, why: str, signals: Signals, *, predicted: float | None = None, kind: str = "policy") -> None:
        before, share = self.job.pace.name, signals.share
        self._paces[before] = self.job.pace
        at = "" if share is None else f" at {100.0 * share:.0f} % of the work"
        self.job.warn(f"pace {before} -> {pace.name}{at}: {why}")
        self.history.append(Move(signals.version, signals.samples, share, before, pace.name, why, signals.loss, kind, predicted))

    def _must_go_back(self, signals: Signals) -> bool:
        """While the shards keep a state to go back to: judge the last move, and take it back or let it be."""
        if self.job.kept is None or not self.history:
            return False
        judgement = safety.judge(signals, self.history[-1])
        if judgement.goes_back:
            self._go_back(judgement.why, signals, judgement.inputs)
        elif judgement.is_over:
            self.job.kept = None
        return judgement.goes_back

    def _go_back(self, why: str, signals: Signals, inputs: dict[str, float]) -> None:
        """Take the last move back: the state that was kept, and the pace before it."""
        before = self._paces[self.history[-1].before]
        place = {"samples": signals.samples, "share": signals.share, "version": signals.version}
        names = {"from": self.job.pace.name, "to": before.name}
        self.job.outbox.append(Decide({"event": "restore", **place, **names, "why": why, "inputs": inputs}))
        self._promise = None
        self.job.accounts.restores += 1
        self._made(before, why, signals, kind="restore")
        self.steps.ask_for(Change(before, why, restores=True))

    def diverged(self, sentence: str) -> None:
        """Numbers are not finite any more: go back if the shards keep a state, else the run is over."""
        job = self.job
        if self.steps.change is not None and self.steps.change.restores:
            return
        if job.gauges is None or job.kept is None or not self.history or self.epochs.stage is not Stage.OPEN or job.stopping:
            job.end(1, sentence)
            return
        for worker in job.members.workers.values():
            worker.not_finite = 0
        self._go_back(sentence, self._read(job.gauges), said(sentence))

    def _set_leads(self, decision: Decision) -> None:
        for number, lead in decision.leads:
            worker = self.job.members.workers.get(number)
            if worker is not None and worker.attached and self.steps.lead_of(number) != lead:
                self.steps.set_lead(worker, lead)

    # --- shares of a batch --------------------------------------------------------------------------------

    def _balance(self, signals: Signals) -> None:
        """With shares by speed: bring each worker's part of a batch nearer to its speed."""
        if self.job.settings.shares == "speed" and not (self._hybrid is not None and self._hybrid.gives_shares):
            self._set_parts(dict(self._shares.parts(signals)))

    def _set_parts(self, parts: dict[int, float]) -> None:
        if parts and parts != self.parts and self.epochs.leases.set_parts(parts):
            self.parts = parts
            self.job.note("shares", parts={str(number): round(part, 4) for number, part in sorted(parts.items())})

    # --- the log ------------------------------------------------------------------------------------------

    def _record(self, decision: Decision, signals: Signals, leave: safety.Leave, *, moved: bool) -> None:
        assert self._hybrid is not None
        self.job.accounts.decisions += 1
        record: dict[str, object] = {
            "event": "decision",
            "number": self._num_evaluated,
            "policy": self._hybrid.name,
            "samples": signals.samples,
            "share": signals.share,
            "version": signals.version,
            "pace": signals.pace,
            "next": decision.pace.name if decision.pace is not None else None,
            "moved": moved,
            "held": leave.reason,
            "why": decision.why,
            "inputs": decision.inputs | {f"held_{name}": value for name, value in leave.inputs.items()},
            "signals": msgspec.to_builtins(signals),
            "candidates": msgspec.to_builtins(decision.candidates),
            "predicted": decision.predicted,
            "leads": decision.leads,
            "shares": decision.shares,
        }
        self.job.outbox.append(Decide(record))

    def _keep_promise(self, signals: Signals) -> None:
        """Once enough has happened since a move that predicted its rate: write down what came."""
        promise = self._promise
        if promise is None or promise.pace != self.job.pace.name:
            return
        steps = self.job.accounts.num_steps - promise.num_steps
        if steps < OUTCOME_STEPS * max(1, len(signals.workers)) or not signals.samples_per_s:
            return
        self._promise = None
        came = signals.samples_per_s
        error = abs(came - promise.samples_per_s) / came
        outcome = {"number": promise.number, "pace": promise.pace, "predicted": promise.samples_per_s, "came": came, "error": error}
        self.job.outbox.append(Decide({"event": "outcome", **outcome}))
