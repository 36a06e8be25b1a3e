"""A coordinator that a test plays by hand: workers that have begun, pushes one by one, and what comes of each in words."""

from __future__ import annotations

from paceline.messages import (
    Accept,
    Address,
    AtEnd,
    Attached,
    Begin,
    Drawn,
    Enter,
    Fold,
    Hello,
    LeaseRequest,
    Message,
    Ready,
    Seeded,
    ServerHello,
    Serving,
    Start,
)
from paceline.pace import parse_pace
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import Effect, End, JobSettings, Note, Send, Warn
from world import model_of

START_S = 1000.0
"""A clock begins anywhere: whoever takes a time for a length of time is found out."""


class Desk:
    """One server; `num_workers` workers that have started on their first batch of `samples` samples each."""

    def __init__(self, pace: str, num_workers: int, *, num_batches: int = 100, samples: int = 4, **settings: object) -> None:
        self.scales_gradients = bool(settings.pop("scales_gradients", True))
        self.coordinator = Coordinator(JobSettings(num_workers, 1, parse_pace(pace), **settings), START_S)  # pyright: ignore[reportArgumentType]
        self.now_s, self.samples = START_S, samples
        self.starts: dict[int, Start] = {}
        self.holding: dict[int, list[int]] = {}
        self.folds: list[Fold] = []
        self.accepts: list[Accept] = []
        self.sent: list[Send] = []
        self.events: list[dict[str, object]] = []
        self.warnings: list[str] = []
        self.end: End | None = None
        self.tell(Address("server"), ServerHello(0, 0, "host"))
        for worker in range(num_workers):
            self.hello(worker)
        self.tell(0, Seeded(False))
        self.tell(Address("server"), Serving())
        for worker in range(num_workers):
            self.tell(worker, Attached())
        self.tell(0, Enter(0))
        self.draw(num_batches)
        for worker in range(1, num_workers):
            self.tell(worker, Enter(0))
        for worker in range(num_workers):
            self.tell(worker, LeaseRequest(0, wait=True))
        for worker in range(num_workers):
            self.tell(worker, Begin(0))

    def hello(self, worker: int, incarnation: int = 0) -> str:
        """A worker says hello."""
        return self.tell(worker, Hello(worker, incarnation, 1, "host", model_of(scales_gradients=self.scales_gradients)))

    def draw(self, num_batches: int, epoch: int = 0, owners: tuple[int, ...] = ()) -> str:
        """Worker 0 hands in a batch list."""
        return self.tell(0, Drawn(epoch, (self.samples,) * num_batches, owners, num_batches))

    def join(self, worker: int, incarnation: int = 0) -> str:
        """A worker joins late and starts on its first batch."""
        self.hello(worker, incarnation)
        self.tell(worker, Attached())
        self.tell(worker, Enter(self.coordinator.epochs.index))
        self.tell(worker, LeaseRequest(self.coordinator.epochs.index, wait=True))
        return self.tell(worker, Begin(self.coordinator.epochs.index))

    def push(self, worker: int, *, norm: float = 1.0, read: int | None = None, **fields: object) -> str:
        """A worker's gradient arrives; it read version `read` (by default what it was told to) of every shard."""
        start, member = self.starts[worker], self.coordinator.job.members.workers[worker]
        version = start.at_least if read is None else read
        samples = int(str(fields.pop("samples", self.samples)))
        ready = Ready(start.step, member.incarnation, start.step % 2, (version,), tuple(member.started), samples, norm, **fields)  # pyright: ignore[reportArgumentType]
        return self.tell(worker, ready)

    def tell(self, sender: int | Address, message: Message) -> str:
        """Hand a message in; what comes of it, in words."""
        address = sender if isinstance(sender, Address) else Address("worker", sender)
        return self._note(self.coordinator.handle(address, message, self.now_s))

    def lose(self, worker: int) -> str:
        """A worker dies."""
        return self._note(self.coordinator.left(Address("worker", worker), "killed", self.now_s))

    def set_pace(self, pace: str) -> str:
        """The pace is changed."""
        return self._note(self.coordinator.set_pace(parse_pace(pace), "a test wants it", self.now_s))

    def wait(self, seconds: float) -> str:
        """Time passes; the coordinator is woken whenever it asked to be."""
        until_s, said = self.now_s + seconds, []
        while self.end is None and (due_s := self.coordinator.deadline_s) <= until_s:
            self.now_s = max(self.now_s, due_s)
            said.append(self._note(self.coordinator.expire(self.now_s)))
        self.now_s = until_s
        return "; ".join(one for one in said if one)

    def at_end(self, worker: int) -> str:
        """A worker holds the version of the epoch's end."""
        return self.tell(worker, AtEnd(self.coordinator.epochs.index))

    def _note(self, effects: list[Effect]) -> str:
        """Keep what was said; the updates, refusals and starts among it, in words."""
        said: list[str] = []
        going: list[int] = []
        for effect in effects:
            if isinstance(effect, Send):
                self.sent.append(effect)
                message = effect.message
                if isinstance(message, Fold):
                    self.folds.append(message)
                    said.append("update " + " ".join(str(member.worker) for member in message.members))
                elif isinstance(message, Accept):
                    self.accepts.append(message)
                elif isinstance(message, Start):
                    self.starts[effect.to.id] = message
                    going.append(effect.to.id)
            elif isinstance(effect, Note):
                self.events.append(effect.event)
                if effect.event["event"] == "refuse":
                    said.append(f"refuse {effect.event['worker']}: {effect.event['reason']}")
            elif isinstance(effect, Warn):
                self.warnings.append(effect.sentence)
            elif isinstance(effect, End):
                self.end = effect
        if going:
            said.append("go " + " ".join(map(str, sorted(going))))
        return "; ".join(said)
