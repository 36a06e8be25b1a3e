"""A worker that applies the order itself: one of a group whose members hold all shards each and sum gradients among themselves.

It listens in on the worker's conversations and takes out what is of the order. A server's role does the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, Protocol

from paceline.errors import ProtocolError
from paceline.messages import (
    COORDINATOR,
    Broken,
    Convene,
    Convened,
    Disband,
    Factor,
    Fold,
    Form,
    Formed,
    Handed,
    Keep,
    Measured,
    Message,
    ModelSpec,
    Restate,
    Restore,
    Serve,
    SetPace,
)
from paceline.ports import Delivery
from paceline.roles.effects import Effect, End, Send
from paceline.roles.server import Server, ShardStore
from paceline.roles.talk import Receive, T, Together
from paceline.roles.worker import WorkerRole

ORDER = (Convene, Form, Disband, Fold, Factor, SetPace, Keep, Restore, Restate)
"""What is for the applier and not for the conversation that it comes in."""
FROM_SERVERS = ("server",)
Doing = Generator[Send | Receive | Together, Any, None]


class Whole(Protocol):
    """What a worker needs to hold all shards; see `session.whole`."""

    @property
    def model(self) -> ModelSpec:
        """What is trained."""
        ...

    def pulling(self) -> None:
        """The parameters are on their way from the servers from now on."""
        ...

    def pulled(self) -> None:
        """They are here."""
        ...

    def convene(self) -> tuple[str, int]:
        """Open a place to meet; returns where it is. Raises OSError."""
        ...

    def store(self) -> ShardStore:
        """All shards as one, whose gradients were summed when `reduce` names them."""
        ...

    def open(self, message: Message, attachments: tuple[int, ...]) -> tuple[object, ...]:
        """What the store takes in place of what came with an entry of the order."""
        ...

    def read(self, *, buffers: bool) -> None:
        """Bring the averaged buffers, if asked, to where the worker reads them."""
        ...

    def save(self, *, optimizer: bool) -> object:
        """The state of all shards, without the averaged buffers."""
        ...

    def give(self) -> object:
        """The state of all shards and the averaged buffers, for the servers."""
        ...

    def disband(self) -> None:
        """The group is no more; the shards may still be asked for until this worker computes again."""
        ...

    def times(self) -> tuple[float, float]:
        """What summing a gradient, and its way over the servers, takes in seconds."""
        ...


class Applier:
    """The order in a worker. `version` is what its shards are at; they count while `is_active`."""

    def __init__(self, role: WorkerRole, whole: Whole) -> None:
        self.is_active = False
        self.version = 0
        self._role, self._whole = role, whole
        self._server: Server | None = None
        self._generation = 0
        self._speaks = False
        self._due: deque[Delivery] = deque()
        self._early: deque[Delivery] = deque()

    def read(self, *, buffers: bool) -> None:
        """The parameters are in place."""
        self._whole.read(buffers=buffers)

    def save(self, *, optimizer: bool) -> object:
        """The state of all shards."""
        return self._whole.save(optimizer=optimizer)

    # --- listening ----------------------------------------------------------------------------------------

    def attend(self, talk: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """The same conversation, with what the order asks of this worker done in between."""
        try:
            wish = next(talk)
            while True:
                if not isinstance(wish, Receive):
                    wish = talk.send((yield wish))
                    continue
                if wish.is_open:
                    yield from self._catch_up()
                delivery = self._early.popleft() if self._early else (yield wish)
                if isinstance(delivery.message, ORDER):
                    self._due.append(delivery)
                else:
                    wish = talk.send(delivery)
        except StopIteration as end:
            if not self._role.has_left:
                yield from self._catch_up()
            return end.value

    def _aside(self, talk: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """A conversation with the servers in the midst of another one: what is not theirs comes later."""
        early: list[Delivery] = []
        try:
            wish = next(talk)
            while True:
                delivery = yield wish
                if isinstance(wish, Receive) and delivery.sender.role not in FROM_SERVERS:
                    early.append(delivery)
                else:
                    wish = talk.send(delivery)
        except StopIteration as end:
            self._early.extend(early)
            return end.value

    def _catch_up(self) -> Doing:
        while self._due:
            yield from self._enact(self._due.popleft())

    # --- the order ----------------------------------------------------------------------------------------

    def _enact(self, delivery: Delivery) -> Doing:
        match delivery.message:
            case Convene(generation=generation):
                yield from self._convene(generation)
            case Form() as form:
                yield from self._form(form)
            case Disband(gives=gives):
                self.is_active, self._server = False, None
                self._whole.disband()
                if gives:
                    yield Send(COORDINATOR, Handed(self.version), (self._whole.give(),))
            case Fold() as fold:
                why = yield Together(fold)
                if why:
                    yield Send(COORDINATOR, Broken(self._generation, str(why)))
                else:
                    yield from self._apply(fold)
            case Message() as message:
                yield from self._apply(message, self._whole.open(message, delivery.attachments))
            case None:
                raise ProtocolError("the end of a connection is no entry of the order")

    def _convene(self, generation: int) -> Doing:
        try:
            yield Send(COORDINATOR, Convened(generation, *self._whole.convene()))
        except OSError as error:
            yield Send(COORDINATOR, Broken(generation, f"worker {self._role.worker} cannot open a place to meet: {error}"))

    def _form(self, form: Form) -> Doing:
        """Meet the others; what a former group had summed and not applied is forgotten."""
        parts: tuple[object, ...] = ()
        if form.fresh:
            self.is_active = False
            self._role.all_answered()
            self._whole.pulling()
            yield from self._aside(self._role.pull(at_least=form.version, buffers=True))
            self._whole.pulled()
            parts = tuple((yield from self._aside(self._role.snapshot(optimizer=True))))
            self.version = form.version
        self._generation, self._speaks = form.generation, form.workers[0] == self._role.worker
        why = yield Together(form, parts)
        if why:
            yield Send(COORDINATOR, Broken(form.generation, str(why)))
            return
        self._serve()
        self.is_active = True
        yield Send(COORDINATOR, Formed(form.generation, self.version, *(self._whole.times() if form.measure else ())))

    def _serve(self) -> None:
        server = self._server = Server(0, lambda *_: self._whole.store())
        server.handle(COORDINATOR, Serve(0, 1, self._whole.model, has_optimizer_state=False, pace=self._role.pace))
        server.version = self.version

    def _apply(self, message: Message, attachments: tuple[object, ...] = ()) -> Doing:
        server = self._server
        if server is None:
            raise ProtocolError(f"worker {self._role.worker} got {type(message).__name__} and holds no shards")
        for effect in server.handle(COORDINATOR, message, attachments):
            yield from self._said(effect)
        self.version = server.version

    def _said(self, effect: Effect) -> Doing:
        """What the shards say goes to the coordinator; what is the same in all the group, one measures."""
        match effect:
            case Send(message=Measured()) if not self._speaks:
                pass
            case Send():
                yield effect
            case End(sentence=sentence):
                raise ProtocolError(f"worker {self._role.worker}: {sentence}")
            case _:
                pass
