"""The worker's side of every conversation, written once, as generators.

Each generator yields `Send` or `Receive` and is resumed with what arrived; whoever drives it (a process on sockets, a test's world,
a virtual engine) owns time and transport. The role keeps what the worker knows: leases, versions read, which gradient buffer it may write.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from paceline.errors import ProtocolError
from paceline.logic.partition import Memory
from paceline.messages import (
    COORDINATOR,
    Address,
    AtEnd,
    Attach,
    Attached,
    Begin,
    Bye,
    Draw,
    Drawn,
    Enter,
    EpochOver,
    Free,
    GiveBack,
    Go,
    Grant,
    Hello,
    LeaseRequest,
    Leaving,
    Linked,
    Load,
    Log,
    Meet,
    Message,
    Met,
    Params,
    Plan,
    Pull,
    Ready,
    Seeded,
    SnapshotRequest,
    Start,
    State,
    StopRun,
    Welcome,
)
from paceline.pace import Pace
from paceline.ports import Delivery
from paceline.roles.effects import Send
from paceline.roles.talk import Gradient, Holder, Leased, Receive, Talk

M = TypeVar("M", bound=Message)


class WorkerRole:
    """One worker: `step_index` counts its steps, `buffer` is the gradient buffer to write now.

    `memory` is where the parameters were read last. `holder` is there where the worker may have to hold the shards itself.
    """

    def __init__(self, worker: int, incarnation: int, num_servers: int) -> None:
        self.worker, self.incarnation = worker, incarnation
        self.servers = [Address("server", shard) for shard in range(num_servers)]
        self.step_index = self.clock = self.first = 0
        self.versions = [0] * num_servers
        self.held: deque[Leased] = deque()
        self.unfetched: deque[Leased] = deque()
        self.started: list[Leased] = []
        self.granted = self.stopping = self.has_left = False
        self.memory: Memory = "private"
        self.pace: Pace | None = None
        self.holder: Holder | None = None
        self._num_pushed, self._in_flight = 0, [-1, -1]

    @property
    def buffer(self) -> int:
        """The gradient buffer of the current step: the other one after each push."""
        return self._num_pushed % 2

    @property
    def _own(self) -> Holder | None:
        return self.holder if self.holder is not None and self.holder.is_active else None

    # --- joining ------------------------------------------------------------------------------------------

    def join(self, hello: Hello) -> Talk[tuple[Welcome, tuple[int, ...]]]:
        """Ask to be a member; returns the welcome and the parameter arena's attachment."""
        yield Send(COORDINATOR, hello)
        welcome, attachments = yield from self._expect(Welcome, "let this worker join")
        self.servers = self.servers[: welcome.num_servers]
        self.versions = [welcome.version] * welcome.num_servers
        self.pace = welcome.pace
        return welcome, attachments

    def seed(self, has_optimizer_state: bool, attachments: tuple[object, ...]) -> Talk[None]:
        """Tell that the initial values are written."""
        yield Send(COORDINATOR, Seeded(has_optimizer_state), attachments)

    def attach(self, arena: object) -> Talk[Go]:
        """Hand this worker's arena to every server, then wait until the job may begin."""
        for server in self.servers:
            yield Send(server, Attach(self.worker, self.incarnation), (arena,))
        for _ in self.servers:
            yield from self._expect(Linked, "map this worker's memory")
        yield Send(COORDINATOR, Attached())
        go, _ = yield from self._expect(Go, "begin, when all workers have joined")
        self.first = go.first
        return go

    # --- epochs and leases --------------------------------------------------------------------------------

    def enter(self, epoch: int, *, ledger: bool, planned: int = 0) -> Talk[tuple[Draw | Plan, tuple[int, ...]]]:
        """Begin an epoch, one of `planned` in all: either draw its batch list, or get the one that another worker drew."""
        yield Send(COORDINATOR, Enter(epoch, ledger, planned))
        while True:
            delivery = yield Receive("open the epoch, when every worker has ended the last one")
            if isinstance(delivery.message, Draw | Plan):
                return delivery.message, delivery.attachments
            self._reject(delivery)

    def drawn(self, drawn: Drawn, indices: object) -> Talk[tuple[Plan, tuple[int, ...]]]:
        """Hand in the batch list."""
        yield Send(COORDINATOR, drawn, (indices,))
        return (yield from self._expect(Plan, "take the batch list"))

    def lease(self, epoch: int, *, wait: bool) -> Talk[EpochOver | None]:
        """Ask for entries; new ones are in `held` and `unfetched`. Returns EpochOver when the epoch is done."""
        yield Send(COORDINATOR, LeaseRequest(epoch, wait))
        while True:
            delivery = yield Receive("lease samples, or to end the epoch")
            match delivery.message:
                case Grant() as grant:
                    self._take_back(grant.recalled)
                    self._hold(grant.positions, grant.cuts)
                    return None
                case EpochOver() as over:
                    self._forget_leases()
                    self.stopping, self.first = over.stop, over.first
                    return over
                case _:
                    self._reject(delivery)

    def begin(self, epoch: int) -> Talk[bool]:
        """Ask to compute on the next entry (a further one, when some are started). False: nothing is left to start."""
        further = bool(self.started)
        yield Send(COORDINATOR, Begin(epoch))
        start = yield from self._started(read=not further)
        return start.work

    def take(self, leased: Leased) -> None:
        """The entry that was granted is being computed on."""
        if not self.granted or not self.held or self.held[0] != leased:
            raise ProtocolError(f"worker {self.worker} takes entry {leased.position}, which was not granted")
        self.granted = False
        self.started.append(self.held.popleft())

    def give_back(self, epoch: int, *, consumed: bool) -> Talk[None]:
        """The loop was left: everything held goes back; entries already `consumed` are skipped, else leased again."""
        self._forget_leases()
        yield Send(COORDINATOR, GiveBack(epoch, consumed))

    def at_end(self, over: EpochOver) -> Talk[None]:
        """Read the version of the epoch's end, with the averaged buffers, and say so."""
        yield from self.pull(at_least=over.version, buffers=True)
        yield Send(COORDINATOR, AtEnd(over.epoch))

    # --- a step -------------------------------------------------------------------------------------------

    def step(self, gradient: Gradient) -> Talk[Start]:
        """Publish the gradient in `buffer`, wait as long as the pace says, read the parameters to go on with."""
        in_group = self._own is not None
        yield Send(
            COORDINATOR,
            Ready(
                step=self.step_index,
                incarnation=self.incarnation,
                buffer=self.buffer,
                versions=tuple(self.versions),
                positions=tuple(leased.position for leased in self.started),
                **gradient._asdict(),
                in_group=in_group,
            ),
        )
        self.started.clear()
        if not in_group:
            self._in_flight[self.buffer] = self.step_index
            self._num_pushed += 1
        self.step_index += 1
        return (yield from self._started(read=True))

    def pull(self, *, at_least: int = 0, buffers: bool = False, private: bool = True) -> Talk[None]:
        """Read every shard, `at_least` as new as asked; `private` copies it into this worker's own memory.

        Servers correct a stale gradient by what this worker had read, which lies in that memory until they have.
        """
        if (own := self._own) is not None:
            self._read_own(own, at_least, buffers=buffers)
            return
        corrects = self.pace is not None and self.pace.correction.rule != "none"
        taken = max(self._in_flight) if corrects else self._in_flight[self.buffer]
        for shard, server in enumerate(self.servers):
            # servers may be behind what this worker held itself a moment ago
            yield Send(server, Pull(max(at_least, self.versions[shard]), private, taken, buffers and shard == 0))
        self.memory = "private" if private else "shards"
        waiting = len(self.servers)
        while waiting:
            delivery = yield Receive(f"send its parameters of version {at_least} or later", is_open=False)
            if isinstance(delivery.message, Params) and delivery.sender.role == "server":
                self.versions[delivery.sender.id] = delivery.message.version
                waiting -= 1
            else:
                self._reject(delivery)
        self._in_flight = [-1 if step <= taken else step for step in self._in_flight]

    def all_answered(self) -> None:
        """Every gradient that was pushed is refused, or in an update that is read next."""
        self._in_flight = [-1, -1]

    def _read_own(self, holder: Holder, at_least: int, *, buffers: bool) -> None:
        """What this worker holds itself is as new as it was told: the order comes before what follows from it."""
        if holder.version < at_least:
            raise ProtocolError(f"worker {self.worker} holds version {holder.version} and is to read {at_least}")
        holder.read(buffers=buffers)
        self.versions = [holder.version] * len(self.servers)
        self.memory = "whole"

    # --- what the script asks for -------------------------------------------------------------------------

    def log(self, metrics: dict[str, float], epoch: int, weight: int) -> Talk[None]:
        """Send what the script logged."""
        yield Send(COORDINATOR, Log(metrics, epoch, weight))

    def meet(self, key: str, values: tuple[float, ...], weight: float) -> Talk[Met]:
        """Meet all live workers; returns the weighted sums."""
        yield Send(COORDINATOR, Meet(key, values, weight))
        met, _ = yield from self._expect(Met, f"meet all workers at {key}")
        return met

    def snapshot(self, *, optimizer: bool) -> Talk[list[object]]:
        """All shards at one version, each as it was attached, in their order; one in all where this worker holds them."""
        if (own := self._own) is not None:
            return [own.save(optimizer=optimizer)]
        yield Send(COORDINATOR, SnapshotRequest(optimizer))
        parts: list[object] = [None] * len(self.servers)
        for _ in self.servers:
            while True:
                delivery = yield Receive("send its part of the snapshot", is_open=False)
                if isinstance(delivery.message, State):
                    parts[delivery.sender.id] = delivery.attachments[0]
                    break
                self._reject(delivery)
        return parts

    def load(self, load: Load, state: object) -> Talk[None]:
        """Replace the run's state by the attached one; readable after the next meeting."""
        yield Send(COORDINATOR, load, (state,))

    def stop(self, why: str) -> Talk[None]:
        """Ask for an early end of the run for all."""
        yield Send(COORDINATOR, StopRun(why))

    def leave(self) -> Talk[None]:
        """The script has ended: hold the shards until others do."""
        if self._own is not None:
            yield Send(COORDINATOR, Leaving())
            yield from self._expect(Free, "take over what this worker holds")
        self.has_left = True

    def bye(self) -> Talk[None]:
        """The script has ended well."""
        yield from self.leave()
        yield Send(COORDINATOR, Bye())

    # --- parts --------------------------------------------------------------------------------------------

    def _started(self, *, read: bool) -> Talk[Start]:
        """Wait for leave to go on, take note of what came with it, `read` the parameters (not in mid-step)."""
        start, _ = yield from self._expect(Start, "let this worker go on")
        self._take_back(start.recalled)
        self._hold(start.leased, start.cuts)
        self.granted = start.work
        self.clock = start.clock
        self.stopping = self.stopping or start.stop
        if start.pace is not None:
            self.pace = start.pace
        if start.refused:
            self._in_flight[1 - self.buffer] = -1
        if read:
            yield from self.pull(at_least=start.at_least, private=not start.in_place)
        return start

    def _hold(self, positions: tuple[int, ...], cuts: tuple[tuple[int, int], ...]) -> None:
        new = [Leased(position, cuts[i] if cuts else None) for i, position in enumerate(positions)]
        self.held.extend(new)
        self.unfetched.extend(new)

    def _take_back(self, positions: tuple[int, ...]) -> None:
        if positions:
            gone = set(positions)
            self.held = deque(leased for leased in self.held if leased.position not in gone)
            self.unfetched = deque(leased for leased in self.unfetched if leased.position not in gone)

    def _forget_leases(self) -> None:
        self.held.clear()
        self.unfetched.clear()
        self.started.clear()
        self.granted = False

    def _expect(self, kind: type[M], why: str) -> Talk[tuple[M, tuple[int, ...]]]:
        while True:
            delivery = yield Receive(why)
            if isinstance(delivery.message, kind):
                return delivery.message, delivery.attachments
            self._reject(delivery)

    def _reject(self, delivery: Delivery) -> None:
        raise ProtocolError(f"worker {self.worker} got {type(delivery.message).__name__} from {delivery.sender}, which it did not wait for")
