"""A whole job in one thread: the real roles and shards, and a worker's port that lets the others work while it waits.

`Job.link` is what a session runs on. Further workers are scripts of `Talk`s (`Job.add_peer`), resumed by what arrives
for them; one that yields PAUSE goes on when the test says so.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from paceline.config import resolve
from paceline.engine.carry import carry, take_bytes
from paceline.engine.link import Link, Member
from paceline.engine.local.coordinator_main import Keeper, job_settings
from paceline.messages import COORDINATOR, Address, Attach, Message, ModelSpec, Restate, Serve, ServerHello
from paceline.ports import Delivery
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import Effect, End, Metrics, Note, Send, Warn
from paceline.roles.server import Server
from paceline.roles.talk import Receive
from paceline.roles.worker import WorkerRole
from paceline.tensors.shard import Shard
from paceline.transport import memory

PAUSE = "pause"
Peer = Callable[[WorkerRole, ModelSpec], Generator[Any, Any, None]]


class Port:
    """The `ports.Port` of one process of the job."""

    def __init__(self, job: Job, me: Address) -> None:
        self._job, self._me = job, me
        self.inbox: deque[Delivery] = deque()

    def send(self, to: Address, message: Message, attachments: Sequence[int] = ()) -> None:
        self._job.queue.append((self._me, to, message, tuple(os.dup(fd) for fd in attachments)))

    def receive(self, timeout_s: float) -> Delivery | None:
        self._job.work(until=lambda: bool(self.inbox))
        return self.inbox.popleft() if self.inbox else None

    def close(self) -> None:
        """Nothing is open."""


class Job:
    """Coordinator and servers for `num_workers`, in lockstep unless told otherwise; settings as on the command line."""

    def __init__(self, num_workers: int = 1, num_servers: int = 1, **settings: object) -> None:
        given = {"workers": num_workers, "servers": num_servers, "pace": "sync", **settings}
        self.resolved = resolve(cores=1, stamp="", command_line=given)
        self.queue: deque[tuple[Address, Address, Message, tuple[int, ...]]] = deque()
        self.coordinator = Coordinator(job_settings(self.resolved), 0.0)
        self.now_s = 0.0
        self.notes: list[dict[str, object]] = []
        self.metrics: list[Metrics] = []
        self.warnings: list[str] = []
        self.ended: End | None = None
        self.link = Link(Port(self, Address("worker", 0)), Member(0, 0, num_workers, num_servers), self.resolved)
        self._keeper = Keeper()
        self._ports = {Address("worker", 0): self.link._port}
        self._servers = [Server(number, self._build) for number in range(num_servers)]
        self._peers: dict[Address, Generator[Any, Any, None]] = {}
        for number in range(num_servers):
            self.queue.append((Address("server", number), COORDINATOR, ServerHello(number, 0, "here"), ()))

    # --- the others ---------------------------------------------------------------------------------------

    def work(self, until: Callable[[], bool]) -> None:
        """Deliver messages until that is so; when there are none, time passes, for an hour at most."""
        deadline_s = self.now_s + 3600.0
        while not until() and self.ended is None and self.now_s < deadline_s:
            if self.queue:
                self._deliver(*self.queue.popleft())
            else:
                self.now_s = max(self.now_s, self.coordinator.deadline_s)
                self._enact(COORDINATOR, self.coordinator.expire(self.now_s))

    def add_peer(self, worker: int, model: ModelSpec, script: Peer) -> None:
        """Another worker."""
        me = Address("worker", worker)
        self._ports[me] = Port(self, me)
        self._peers[me] = script(WorkerRole(worker, 0, len(self._servers)), model)
        self._resume(me, None)

    def go_on(self, worker: int) -> None:
        """Let a peer that pauses go on until it pauses again or is done."""
        self._resume(Address("worker", worker), None)

    def _resume(self, who: Address, delivery: Delivery | None) -> None:
        peer = self._peers[who]
        try:
            wanted = peer.send(delivery) if delivery is not None else next(peer)
            while isinstance(wanted, Send):
                carry(self._ports[who], wanted)
                wanted = next(peer)
            assert wanted == PAUSE or isinstance(wanted, Receive)
        except StopIteration:
            pass

    def _deliver(self, sender: Address, to: Address, message: Message, attachments: tuple[int, ...]) -> None:
        if to == COORDINATOR:
            if attachments:
                self._keeper.keep(message, attachments, sender, self.coordinator)
            self._enact(COORDINATOR, self.coordinator.handle(sender, message, self.now_s))
        elif to.role == "server":
            self._enact(to, self._servers[to.id].handle(sender, message, _opened(message, attachments)))
        elif to in self._peers:
            self._resume(to, Delivery(sender, message, attachments))
        else:
            self._ports[to].inbox.append(Delivery(sender, message, attachments))

    def _enact(self, sender: Address, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    carry(Port(self, sender), self._keeper.attach(effect, self.coordinator) if sender == COORDINATOR else effect)
                case Note(event=event):
                    self.notes.append(event)
                case Metrics():
                    self.metrics.append(effect)
                case Warn(sentence=sentence):
                    self.warnings.append(sentence)
                case End():
                    self.ended = effect

    def _build(self, serve: Serve, attachments: tuple[Any, ...]) -> Shard:
        shard = Shard(serve.model, serve.shard, serve.num_shards, attachments[0])
        for state in attachments[1:]:
            shard.load(state, parameters=False, optimizer=True)
        return shard

    # --- what is looked at --------------------------------------------------------------------------------

    def updates(self) -> list[list[int]]:
        """The workers of each update."""
        return [[member["worker"] for member in note["members"]] for note in self.notes if note["event"] == "update"]  # type: ignore[index, attr-defined]

    def samples(self) -> tuple[int, int, int]:
        """Samples once, repeated, skipped."""
        books = self.coordinator.job.accounts.ledgers
        return books.once, books.repeated, books.skipped


def _opened(message: Message, attachments: tuple[int, ...]) -> tuple[object, ...]:
    opened: list[object] = []
    for i, fd in enumerate(attachments):
        if isinstance(message, Restate) or (isinstance(message, Serve) and i):
            opened.append(take_bytes(fd))
        else:
            assert isinstance(message, Serve | Attach)
            opened.append(torch.frombuffer(memory.map_shared(fd), dtype=torch.uint8))
            os.close(fd)
    return tuple(opened)
