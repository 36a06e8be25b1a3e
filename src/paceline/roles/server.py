"""A server: applies the order to its shard, entry by entry, and answers pulls between entries.

It holds no policy. The store does the arithmetic (`tensors.Shard`, or counters where only the order matters); a
fold that needs a factor of all shards (it is clipped, or bounded) waits for it, and what comes behind it waits in line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from paceline.logic.fold import needs_factor
from paceline.messages import (
    COORDINATOR,
    Accept,
    Address,
    Attach,
    Factor,
    Finish,
    Finished,
    Fold,
    Gone,
    Keep,
    Linked,
    Measured,
    Member,
    Message,
    NotFinite,
    Params,
    PartNorm,
    Pull,
    Restate,
    Restore,
    Serve,
    Serving,
    SetPace,
    Snapshot,
    State,
)
from paceline.pace import Correction, Pace
from paceline.roles.effects import Effect, End, Send

MAX_LINE = 100_000
"""Entries that may wait behind a fold without its factor; more means that the coordinator is out of its mind."""


Squares = tuple[float, float, float]
"""Squared 2-norms of an update: its gradient, the parameters before, their change."""


class ShardStore(Protocol):
    """One shard's arithmetic; see `tensors.shard.Shard`."""

    def attach(self, worker: int, incarnation: int, memory: object) -> None:
        """Map a worker's arena."""
        ...

    def detach(self, worker: int, incarnation: int) -> None:
        """Let a worker's arena go."""
        ...

    def gather(self, member: Member) -> None:
        """Add a member's weighted gradient to the accumulator."""
        ...

    def reduce(self, members: tuple[Member, ...], scale: float) -> None:
        """Make the fold's gradient of the accumulator and the members that are not gathered."""
        ...

    def square_norm(self) -> float:
        """The squared 2-norm of the fold's gradient."""
        ...

    def moved(self) -> float:
        """How far the parameters are from what the fold's members had read: the squared 2-norm, a mean by weight."""
        ...

    def apply(self, *, factor: float, lr_factor: float, hyper: bytes, absent: bytes, measure: bool) -> Squares | None:
        """Take the optimizer's step; with `measure`, tell how large it was."""
        ...

    def set_pace(self, pace: Pace, *, ramp_updates: int) -> None:
        """The correction of `pace` holds from now on, and what it says of the momentum."""
        ...

    def keep(self) -> None:
        """Keep the state as it is now: parameters, optimizer state, mean buffers."""
        ...

    def restore(self) -> None:
        """Put back what was kept; nothing is gathered any more."""
        ...

    def idle(self) -> bool:
        """Do a little of what may be done at any time; returns whether there is more."""
        ...

    def find_non_finite(self) -> str | None:
        """The name of a parameter that is not finite."""
        ...

    def copy_out(self, worker: int, incarnation: int, *, buffers: bool) -> None:
        """Write the shard into a worker's private parameters."""
        ...

    def take_buffers(self, member: Member) -> None:
        """Average a worker's buffers in."""
        ...

    def save(self, *, optimizer: bool) -> bytes:
        """The shard's state."""
        ...

    def load(self, state: bytes | memoryview, *, parameters: bool, optimizer: bool) -> None:
        """Replace the shard's state by its slices of a whole one."""
        ...


class Waiting(NamedTuple):
    """A pull that the shard is not new enough for."""

    sender: Address
    pull: Pull


class Server:
    """One shard's role. `build` makes the store from Serve and its attachments."""

    def __init__(self, shard: int, build: Callable[[Serve, tuple[object, ...]], ShardStore]) -> None:
        self.shard = shard
        self.version = 0
        self.store: ShardStore | None = None
        self._build = build
        self._early: list[tuple[Address, Attach, tuple[object, ...]]] = []
        self._line: deque[tuple[Message, tuple[object, ...]]] = deque()
        self._reduced: Fold | None = None
        self._correction = Correction()
        self._pulls: list[Waiting] = []
        self._incarnations: dict[int, int] = {}
        self._mapped: set[tuple[int, int]] = set()
        self._gone: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self._outbox: list[Effect] = []

    def handle(self, sender: Address, message: Message, attachments: tuple[object, ...] = ()) -> list[Effect]:
        """A message of the coordinator or a worker; effects in order."""
        match message:
            case Pull():
                self._pull(Waiting(sender, message))
            case Attach():
                self._attach(sender, message, attachments)
            case Factor():
                self._factor(message)
            case Serve():
                self._serve(message, attachments)
            case Finish() if self.store is None:
                self._outbox.append(Send(COORDINATOR, Finished(0)))
            case _:
                self._line.append((message, attachments))
                if len(self._line) > MAX_LINE:
                    self._outbox.append(End(4, f"server {self.shard} has {MAX_LINE} orders waiting behind update {self.version + 1}"))
        self._advance()
        outbox, self._outbox = self._outbox, []
        return outbox

    def idle(self) -> bool:
        """Nothing waits: do a little of what may be done at any time; returns whether there is more."""
        return self.store is not None and self.store.idle()

    def left(self, who: Address) -> list[Effect]:
        """A worker's connection is closed: nothing more is written for it."""
        self._pulls = [waiting for waiting in self._pulls if waiting.sender != who]
        return []

    def _serve(self, serve: Serve, attachments: tuple[object, ...]) -> None:
        self.store = self._build(serve, attachments)
        if serve.pace is not None:
            self._correction = serve.pace.correction
        self._outbox.append(Send(COORDINATOR, Serving()))
        early, self._early = self._early, []
        for sender, attach, arena in early:
            self._attach(sender, attach, arena)

    def _attach(self, sender: Address, attach: Attach, attachments: tuple[object, ...]) -> None:
        if self.store is None:
            self._early.append((sender, attach, attachments))
            return
        if attach.incarnation <= self._gone.get(attach.worker, -1):
            return
        self.store.attach(attach.worker, attach.incarnation, attachments[0] if attachments else None)
        self._incarnations[attach.worker] = attach.incarnation
        self._mapped.add((attach.worker, attach.incarnation))
        self._taken[attach.worker] = -1
        self._outbox.append(Send(sender, Linked()))

    # --- the order ----------------------------------------------------------------------------------------

    def _advance(self) -> None:
        while self._line and self._reduced is None and self.store is not None:
            message, attachments = self._line.popleft()
            self._enact(self.store, message, attachments)
            self._answer()

    def _enact(self, store: ShardStore, message: Message, attachments: tuple[object, ...]) -> None:
        match message:
            case Accept(member=member):
                store.gather(member)
                self._consume(store, member)
            case Fold():
                self._fold(store, message)
            case Snapshot(worker=worker, incarnation=incarnation, request=request, optimizer=optimizer):
                if self._incarnations.get(worker) == incarnation:
                    state = store.save(optimizer=optimizer)
                    self._outbox.append(Send(Address("worker", worker), State(request, self.version), (state,)))
            case Restate(version=version, has_parameters=parameters, has_optimizer_state=optimizer):
                state = attachments[0]
                assert isinstance(state, bytes | memoryview)
                store.load(state, parameters=parameters, optimizer=optimizer)
                self.version = version
            case SetPace(version=version, pace=pace, ramp_updates=ramp_updates):
                if self._is_at(version, f"under pace {pace.name}"):
                    self._correction = pace.correction
                    store.set_pace(pace, ramp_updates=ramp_updates)
            case Keep(version=version):
                if self._is_at(version, "kept"):
                    store.keep()
            case Restore(version=version):
                if self._is_at(version - 1, f"restored as {version}"):
                    store.restore()
                    self.version = version
            case Gone(worker=worker, incarnation=incarnation):
                self._let_go(store, worker, incarnation)
            case Finish():
                self._outbox.append(Send(COORDINATOR, Finished(self.version)))
            case _:
                self._outbox.append(End(4, f"server {self.shard} got {type(message).__name__}, which is no order"))

    def _let_go(self, store: ShardStore, worker: int, incarnation: int) -> None:
        """Unmap a worker's memory; its Attach may still be on the way, and another incarnation may be mapped already."""
        self._gone[worker] = incarnation
        if (worker, incarnation) in self._mapped:
            self._mapped.remove((worker, incarnation))
            store.detach(worker, incarnation)
        if self._incarnations.get(worker) == incarnation:
            del self._incarnations[worker]
            self._pulls = [waiting for waiting in self._pulls if waiting.sender != Address("worker", worker)]

    def _is_at(self, version: int, to_be: str) -> bool:
        """Whether the order has no gap here; if it has, the server ends."""
        if version != self.version:
            self._outbox.append(End(4, f"server {self.shard} is at version {self.version} and was ordered to be {to_be} behind {version}"))
        return version == self.version

    def _fold(self, store: ShardStore, fold: Fold) -> None:
        if fold.version != self.version + 1:
            self._outbox.append(End(4, f"server {self.shard} is at version {self.version} and was ordered to make {fold.version}"))
            return
        store.reduce(fold.members, fold.scale)
        if needs_factor(fold, self._correction):
            self._reduced = fold
            square = store.square_norm() if fold.clip else 0.0
            moved = store.moved() if self._correction.rule == "bound" else 0.0
            self._outbox.append(Send(COORDINATOR, PartNorm(fold.version, square, moved)))
        else:
            self._apply(store, fold, Factor(fold.version, 1.0))

    def _factor(self, factor: Factor) -> None:
        fold, store = self._reduced, self.store
        if fold is None or store is None or fold.version != factor.version:
            return
        self._reduced = None
        self._apply(store, fold, factor)
        self._answer()

    def _apply(self, store: ShardStore, fold: Fold, by: Factor) -> None:
        lr_factor = fold.lr_factor * by.lr_factor
        squares = store.apply(factor=by.factor, lr_factor=lr_factor, hyper=fold.hyper, absent=fold.absent, measure=fold.measure)
        self.version = fold.version
        if squares is not None:
            self._outbox.append(Send(COORDINATOR, Measured(fold.version, *squares)))
        for member in fold.members:
            if not member.gathered:
                self._consume(store, member)
        name = store.find_non_finite()
        if name is not None:
            self._outbox.append(Send(COORDINATOR, NotFinite(fold.version, name)))

    def _consume(self, store: ShardStore, member: Member) -> None:
        if member.buffer_samples and not member.gathered:
            store.take_buffers(member)
        if self._incarnations.get(member.worker) == member.incarnation:
            self._taken[member.worker] = member.step

    # --- pulls --------------------------------------------------------------------------------------------

    def park(self, sender: Address, pull: Pull) -> None:
        """A pull that came while the store makes an update: it is answered behind it at the earliest."""
        self._pulls.append(Waiting(sender, pull))

    def answered_next(self) -> list[tuple[int, int, bool]]:
        """The workers, with their incarnations, that pull the update which the store makes now; whether it is to be copied for them."""
        due = [(one.sender.id, one.pull) for one in self._pulls if one.pull.at_least <= self.version + 1]
        ours = [(number, pull.copy) for number, pull in due if self._taken.get(number, -1) >= pull.taken]
        return [(number, self._incarnations[number], copy) for number, copy in ours if number in self._incarnations]

    def _answer(self) -> None:
        waiting, self._pulls = self._pulls, []
        for one in waiting:
            self._pull(one)

    def _pull(self, one: Waiting) -> None:
        """Answer a pull when the shard is new enough and the worker's buffer is read, else keep it."""
        store, pull, number = self.store, one.pull, one.sender.id
        if store is None or self.version < pull.at_least or self._taken.get(number, -1) < pull.taken:
            self._pulls.append(one)
            return
        if pull.copy and number in self._incarnations:
            store.copy_out(number, self._incarnations[number], buffers=pull.buffers)
        self._outbox.append(Send(one.sender, Params(self.version)))
