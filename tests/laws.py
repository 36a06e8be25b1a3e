"""The laws of a job, checked from what the coordinator saw and said: a naive second model that scans everything.

`Referee` watches each event and raises `Violation`; `ends.py` looks at a world that has ended.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from typing import NamedTuple

from paceline.logic.gate import Crowd
from paceline.logic.membership import Phase, Worker
from paceline.messages import (
    Accept,
    Address,
    Attached,
    Begin,
    Bye,
    Disband,
    Factor,
    Fold,
    Form,
    GiveBack,
    Go,
    Keep,
    Leaving,
    Load,
    Message,
    Ready,
    Restate,
    Restore,
    SetPace,
    Start,
)
from paceline.pace import Late, Pace
from paceline.roles.effects import Effect, Note, Send
from paceline.roles.routes import BROKEN, LOST, MOST_FAILURES
from stores import Name, Violation, name_of
from world import Observer, World

IN_GROUP = (Fold, Factor, SetPace, Keep, Restore, Restate)
"""Entries of the order that go to the workers of a group in place of the servers."""


class Arrived(NamedTuple):
    """A gradient as it came: its base, and the version, pace and last Restore that it met."""

    samples: int
    base: int
    version: int
    pace: Pace
    finite: bool
    floor: int = 0


class Model:
    """What the referee knows of one worker."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.asking = self.computing = self.active = self.counted = self.in_place = False
        self.versions: tuple[int, ...] = ()
        self.count = 0
        self.bound: int | None = None


def require(holds: bool, sentence: str) -> None:
    """Raise when a law is broken."""
    if not holds:
        raise Violation(sentence)


def omega(pace: Pace, tau: int, live: int) -> float:
    """What a gradient of staleness `tau` weighs among those of `live` workers: no more than one of equal workers."""
    tau = max(tau, math.ceil(max(1, live) / pace.quorum.of(max(1, live))) - 1)
    match pace.weighting.rule:
        case "inverse":
            return 1 / max(1, tau)
        case "polynomial":
            return (1 + tau) ** -pace.weighting.exponent
        case _:
            return 1.0


def nominal(pace: Pace, live: int, at_start: int, *, scales: bool) -> float:
    """What the learning rate is multiplied by: the nominal quorum over the workers at the start."""
    if pace.weighting.rule != "none" or pace.quorum.rule == "all":
        return 1.0
    quorum = pace.quorum.of(live)
    share = (min(quorum, live) if pace.distinct else quorum) / at_start
    return share if scales else math.sqrt(share)


class Referee(Observer):
    """Checks every decision of the coordinator against the rules, told naively."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.version = 0
        self.workers: dict[int, Model] = {}
        self.arrived: dict[Name, Arrived] = {}
        self.gathered: dict[Name, int] = {}
        self.pending: list[Name] = []
        self.folded: dict[Name, int] = {}
        self.refused: dict[Name, str] = {}
        self.orders: dict[int, list[Message]] = {}
        self.fewest = 0
        self.unstarted: set[int] = set()
        self.begun = self.loading = False
        self.pace: Pace | None = None
        self.changing = False
        self.floor = 0
        self.kept: set[Name] | None = None
        self.keeps = False
        self.restored: list[tuple[int, set[Name]]] = []
        self.proposed: Fold | None = None
        self.group: tuple[int, ...] = ()

    # --- events -------------------------------------------------------------------------------------------

    @property
    def _pace(self) -> Pace:
        if self.pace is None:
            assert self.world is not None
            self.pace = self.world.settings.pace
        return self.pace

    def before(self, sender: Address, message: Message | None) -> None:
        self.unstarted = {number for number in self.workers if self._unstarted(number)}
        self.loading = isinstance(message, Load) and not any(model.in_place for model in self.workers.values())
        if sender.role != "worker":
            return
        if message is None or isinstance(message, Bye):
            self.workers.pop(sender.id, None)
            self.group = tuple(number for number in self.group if number != sender.id)
            return
        if isinstance(message, Attached):
            assert self.world is not None
            self.workers[sender.id] = Model(self.world.coordinator.job.members.workers[sender.id].incarnation)
        model = self.workers.get(sender.id)
        match message:
            case Begin() if model is not None and not model.computing:
                model.asking = True
                self._activate(model)
            case Ready() if model is not None:
                self._ready(model, (sender.id, message.incarnation, message.step), message)
            case GiveBack() | Leaving() if model is not None:
                self._fewest()
                model.active = model.computing = model.in_place = False
            case _:
                pass

    def _ready(self, model: Model, name: Name, ready: Ready) -> None:
        require(name not in self.arrived, f"{name} arrived twice")
        require(all(new >= old for new, old in zip(ready.versions, model.versions, strict=False)), f"reads of {name} went back")
        model.versions = ready.versions
        self.arrived[name] = Arrived(ready.samples, min(ready.versions), self.version, self._pace, math.isfinite(ready.norm), self.floor)
        self.pending.append(name)
        model.asking, model.computing, model.in_place = True, False, False
        model.count += 1

    def _activate(self, model: Model) -> None:
        if not model.active:
            model.count = max(model.count, self._fewest())
            model.active = True

    def _fewest(self) -> int:
        """The fewest answered steps of an active worker; with none active, what it was last."""
        self.fewest = min((model.count for model in self.workers.values() if model.active), default=self.fewest)
        return self.fewest

    def after(self, effects: list[Effect]) -> None:
        self.changing = any(isinstance(effect, Send) and isinstance(effect.message, SetPace) for effect in effects)
        grouped: dict[int, list[Message]] = {}
        for effect in effects:
            if isinstance(effect, Note):
                self._noted(effect.event)
            elif isinstance(effect, Send) and effect.to.role == "worker" and isinstance(effect.message, IN_GROUP):
                grouped.setdefault(effect.to.id, []).append(effect.message)
                if effect.to.id == min(grouped):
                    self._proposed(effect.message)
            elif isinstance(effect, Send):
                self._sent(effect.to, effect.message)
        require(len({tuple(map(repr, orders)) for orders in grouped.values()}) <= 1, f"the group got different orders: {grouped}")
        self.begun = self.begun or any(isinstance(effect, Send) and isinstance(effect.message, Go) for effect in effects)
        assert self.world is not None
        if self.world.coordinator.job.ended:
            return
        require(len({len(orders) for orders in self.orders.values()}) <= 1, "an order did not go to every shard")
        self._check_counts()
        self._nobody_waits_in_vain()

    def _noted(self, event: dict[str, object]) -> None:
        if event["event"] == "lead":
            self.workers[int(str(event["worker"]))].bound = int(str(event["lead"]))
        if event["event"] == "refuse":
            worker, step = int(str(event["worker"])), int(str(event["step"]))
            name = max(name for name in self.arrived if name[0] == worker and name[2] == step)
            require(name in self.pending, f"{name} is refused, but it was answered before")
            self.pending.remove(name)
            self.refused[name] = str(event["reason"])
            came = self.arrived[name]
            is_lost = event["reason"] == LOST and name[:2] not in [(number, one.incarnation) for number, one in self.workers.items()]
            is_broken = event["reason"] == BROKEN and self.world is not None and self.world.coordinator.routes.num_broken >= MOST_FAILURES
            require(is_lost or is_broken or not self._welcome(came), f"{name} is refused for nothing: {came}")

    def _welcome(self, came: Arrived) -> bool:
        late = came.pace.late is Late.DROP and came.base != came.version
        stale = came.pace.max_staleness is not None and came.version - came.base > came.pace.max_staleness
        return came.finite and not late and not stale and came.base >= came.floor

    def _sent(self, to: Address, message: Message) -> None:
        if to.role == "server":
            self.orders.setdefault(to.id, []).append(message)
            if to.id == 0:
                self._ordered(message)
            else:
                first = self.orders[0][len(self.orders[to.id]) - 1]
                require(first == message or not isinstance(message, Fold | Accept), "shards got other orders")
        elif isinstance(message, Form):
            self.proposed, self.group = None, message.workers
        elif isinstance(message, Disband):
            self.proposed, self.group = None, ()
        elif isinstance(message, Go) and not self.begun:
            self.workers[to.id].counted = True
        elif isinstance(message, Start):
            self._started(to.id, message)

    # --- updates ------------------------------------------------------------------------------------------

    def _proposed(self, message: Message) -> None:
        """An entry of the order goes to a group: an update is made when all of it have voted for it."""
        match message:
            case Fold(votes=votes):
                require(votes, f"update {message.version} of a group is not voted on")
                outside = [member.worker for member in message.members if member.worker not in self.group]
                require(not outside, f"update {message.version} of {self.group} has gradients of {outside}")
                require(
                    not any(model.computing for model in self.workers.values()),
                    f"update {message.version} is summed while somebody computes",
                )
                self._check_fold(message)
                self.proposed = message
            case Factor(version=version):
                require(self.proposed is not None and self.proposed.version == version, f"update {version} was not proposed")
                assert self.proposed is not None
                self._commit(self.proposed)
                self.proposed = None
            case _:
                require(self.proposed is None, f"{message} comes between an update and its vote")
                self._ordered(message)

    def _ordered(self, message: Message) -> None:
        match message:
            case Fold():
                self._check_fold(message)
                self._commit(message)
            case Accept(member=member):
                require(self._welcome(self.arrived[name_of(member)]), f"{name_of(member)} is accepted against the rules")
                require(name_of(member) in self.pending, f"{name_of(member)} is accepted but not pending")
                self.gathered[name_of(member)] = len(self._live())
            case Restate(handed=True):
                require(message.version == self.version, f"version {message.version} is handed over when {self.version} is ordered")
                require(not any(model.computing for model in self.workers.values()), "the shards move while somebody computes")
                self.group = ()
            case Restate():
                self.version, self.kept = message.version, None
            case SetPace():
                self._changed(message)
            case Keep():
                require(message.version == self.version, f"version {message.version} is kept when {self.version} is ordered")
                self.kept, self.keeps = set(), True
            case Restore():
                self._restored(message)
            case _:
                pass

    def _changed(self, change: SetPace) -> None:
        require(not self.pending, f"{self.pending} are pending when the pace becomes {change.pace.name}")
        require(change.version == self.version, f"the pace changes behind {change.version} when {self.version} is ordered")
        # what is kept is kept right before the change, whose momentum may be set to zero
        self.pace, self.fewest, self.kept, self.keeps = change.pace, 0, self.kept if self.keeps else None, False
        for model in self.workers.values():
            model.count, model.bound = 0, None

    def _restored(self, restore: Restore) -> None:
        require(restore.version == self.version + 1, f"version {restore.version} follows {self.version}")
        require(self.kept is not None, "nothing was kept that could be restored")
        require(not self.pending, f"{self.pending} are pending when the state goes back")
        require(not any(model.in_place for model in self.workers.values()), "the state goes back under somebody who computes on it")
        assert self.world is not None
        self.restored.append((self.world.coordinator.epochs.index, self.kept or set()))
        self.version = self.floor = restore.version

    def _check_fold(self, fold: Fold) -> None:
        require(fold.version == self.version + 1, f"version {fold.version} follows {self.version}")
        names = [name_of(member) for member in fold.members]
        for name in names:
            require(name in self.arrived, f"update {fold.version} has {name}, which never arrived")
            require(name not in self.folded, f"{name} is in updates {self.folded.get(name)} and {fold.version}")
            require(name not in self.refused, f"{name} was refused and is in update {fold.version}")
            require(self._welcome(self.arrived[name]), f"{name} is in update {fold.version} against the rules: {self.arrived[name]}")
        require(Counter(names) == Counter(self.pending), f"update {fold.version} has {names}, pending were {self.pending}")
        assert self.world is not None
        changing = (self.changing or self.world.coordinator.steps.change is not None) and not any(
            model.in_place for model in self.workers.values()
        )
        # what is leased to those whom the update lets go is not yet theirs when it is made
        due = changing or self.loading or self._fold_due() or self._fold_due(self.unstarted)
        require(due, f"update {fold.version} of {names} is made too early in {self._pace.name}")
        self._check_bounds(fold, self._pace)

    def _commit(self, fold: Fold) -> None:
        self.keeps = False
        for name in map(name_of, fold.members):
            require(name in self.pending, f"update {fold.version} is made with {name}, which is answered already")
            self.folded[name] = fold.version
            if self.kept is not None:
                self.kept.add(name)
        self.version = fold.version
        self.pending.clear()

    def _check_bounds(self, fold: Fold, pace: Pace) -> None:
        if pace.distinct:
            workers = [member.worker for member in fold.members]
            require(workers == sorted(workers), f"update {fold.version} is not in the order of its workers: {workers}")
        taus = [fold.version - 1 - self.arrived[name_of(member)].base for member in fold.members]
        if pace.max_staleness is not None and pace.late is Late.KEEP:
            require(max(taus) <= pace.max_staleness, f"update {fold.version} has stalenesses {taus}")
        lives = [self.gathered.get(name_of(member), len(self._live())) for member in fold.members]
        omegas = [omega(pace, tau, live) for tau, live in zip(taus, lives, strict=True)]
        samples = [self.arrived[name_of(member)].samples for member in fold.members]
        total, felt = sum(samples), sum(map(operator.mul, samples, omegas))
        for member, size, factor in zip(fold.members, samples, omegas, strict=True):
            weight = member.weight * fold.scale
            expected = size * factor / (total if self._scales else felt)
            require(abs(weight - expected) < 1e-12, f"update {fold.version} weighs {name_of(member)} by {weight}, not {expected}")
        expected = nominal(pace, max(1, len(self._live())), self.world.settings.num_workers, scales=self._scales)
        expected *= 1.0 if self._scales else felt / total
        require(abs(fold.lr_factor - expected) < 1e-12, f"update {fold.version} has the factor {fold.lr_factor}, not {expected}")

    @property
    def _scales(self) -> bool:
        assert self.world is not None
        model = self.world.coordinator.job.model
        return model is not None and model.scales_gradients

    def _live(self) -> list[int]:
        return [number for number, model in self.workers.items() if model.counted]

    def _check_counts(self) -> None:
        """The counts that the coordinator keeps are those of a scan."""
        assert self.world is not None
        job = self.world.coordinator.job
        members = list(job.members.workers.values())
        gone = {one.owner for one in job.pending if one.owner.is_gone}
        scan = Crowd(
            sum(one.counted for one in members),
            sum(one.counted and self._holds(one) for one in members) + len(gone),
            sum(one.phase is Phase.COMPUTING for one in members),
            sum(one.in_place for one in members),
            sum(one.phase is Phase.ASKING or (one.phase is Phase.RESTING and (self._unstarted(one.id) or one.is_open)) for one in members),
        )
        require(job.members.crowd == scan, f"the coordinator counts {job.members.crowd}, there are {scan}")

    def _holds(self, one: Worker) -> bool:
        return bool(one.started or one.num_pending or one.is_open or self._unstarted(one.id))

    # --- the gate, naively --------------------------------------------------------------------------------

    def _started(self, worker: int, start: Start) -> None:
        model = self.workers[worker]
        if start.work and not model.computing:
            require(start.at_least == self.version, f"worker {worker} may read version {start.at_least} when {self.version} is ordered")
            require(not self._held_up(worker), f"worker {worker} starts against the rules of {self._pace.name}")
            require(self.proposed is None, f"worker {worker} starts while its group sums update {self.version + 1}")
        if start.work:
            self._activate(model)
            model.counted = model.computing = True
        elif not model.computing:
            self._fewest()
            model.active = False
        model.asking, model.in_place = False, start.in_place and model.computing

    def _held_up(self, worker: int) -> bool:
        model = self.workers[worker]
        mine = any(name[:2] == (worker, model.incarnation) for name in self.pending)
        lead = model.count - self._fewest() if model.active else 0
        bound = self._pace.max_lead if model.bound is None or self._pace.max_lead is None else model.bound
        is_outsider = bool(self.group) and worker not in self.group
        return is_outsider or (self._pace.distinct and mine) or (bound is not None and lead > bound)

    def _unstarted(self, worker: int) -> bool:
        assert self.world is not None
        epochs, member = self.world.coordinator.epochs.leases, self.world.coordinator.job.members.workers.get(worker)
        return member is not None and epochs.ledger is not None and not member.left_epoch and epochs.ledger.holds(worker)

    def _fold_due(self, unstarted: set[int] | None = None) -> bool:
        """Whether what is pending makes an update now; `unstarted` are those that hold entries, by default now."""
        if unstarted is None:
            unstarted = {number for number in self.workers if self._unstarted(number)}
        assert self.world is not None
        if not self.pending:
            return False
        pace, live = self._pace, self._live()
        owing = {name[:2] for name in self.pending}
        computing = [number for number, model in self.workers.items() if model.computing]
        if any(self.workers[number].in_place for number in computing) and not pace.reads_in_place:
            return False
        holders = {number for number in live if number in computing or number in unstarted}
        incarnations = {(number, self.workers[number].incarnation) for number in holders} | owing
        quorum = pace.quorum.of(max(1, len(live))) if pace.quorum.rule != "all" else len(incarnations)
        if pace.distinct:
            quorum = min(quorum, len(incarnations))
        resting = [number for number, model in self.workers.items() if not model.computing and not model.asking]
        startable = any(number in unstarted for number in resting) or any(
            model.asking and not self._held_up(number) for number, model in self.workers.items()
        )
        return len(self.pending) >= quorum or not (computing or startable)

    def _nobody_waits_in_vain(self) -> None:
        assert self.world is not None
        change, moves = self.world.coordinator.steps.change, self.world.coordinator.routes.holds_back
        if moves:
            return  # the shards are on their way, or a group sums: where this never ends, the world has hung
        in_place = any(model.in_place for model in self.workers.values())
        require(change is None or in_place, f"the change to {change and change.pace.name} waits though nobody computes in place")
        for number, model in self.workers.items():
            require(not model.asking or self._held_up(number), f"worker {number} may start in {self._pace.name} and is not told")
        if not self._pace.grace_s:
            require(not self._fold_due(), f"{self.pending} are due in {self._pace.name} and are not folded")
