"""A whole job in memory: the real roles, first-in-first-out channels, and a seeded scheduler instead of a network.

Nothing sleeps and nothing runs in threads: each event delivers one message, ends one computation, or is one of the
plan's mishaps, and time is a number that grows a little with each. What must never happen raises `Violation`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

from grouped import CountingWhole, Groups
from paceline.logic.policies.policy import Policy
from paceline.messages import COORDINATOR, Address, Form, Halt, Handed, Load, Message, ModelSpec, Restate, Serve, ServerHello, TensorSpec
from paceline.pace import Pace
from paceline.ports import Delivery
from paceline.roles.applier import Applier
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import Decide, Effect, End, JobSettings, Note, Send, Warn
from paceline.roles.server import Server
from paceline.roles.talk import Receive, Together
from paceline.roles.worker import WorkerRole
from stores import Arena, Content, CountingStore, Name, Violation

TICK_S = 0.001


class Compute(NamedTuple):
    """Yielded by a script that computes; `reads` while it works on the parameters, `writes` a gradient buffer."""

    reads: bool
    writes: bool = False


class Mishap(NamedTuple):
    """What happens when `at` events have passed: kill, join, pace, or a jump of the clock."""

    at: int
    kind: str
    worker: int = -1
    pace: Pace | None = None
    jump_s: float = 0.0


def model_of(*, scales_gradients: bool = True) -> ModelSpec:
    """A model of one parameter."""
    return ModelSpec((TensorSpec("w", (64,), "float32", 0),), (), "torch.optim.SGD", b"", b"", True, scales_gradients)


Script = Callable[["Process"], Generator[Send | Receive | Compute, Delivery, None]]


class Process:
    """One incarnation of a worker: its role, its script, and what it is doing."""

    def __init__(self, world: World, worker: int, incarnation: int, script: Script) -> None:
        self.world, self.worker = world, worker
        self.role = WorkerRole(worker, incarnation, len(world.servers))
        self.arena = world.arenas[worker, incarnation] = Arena()
        self.receiving = self.reading = self.reads_in_place = False
        self.computing = self.alive = True
        self.why = "be started"
        self.finished = False
        self.yields_left = -1
        self._seen = list(self.role.versions)
        self.whole = CountingWhole(world, self, model_of())
        self.applier = None if world.settings.route == "servers" else Applier(self.role, self.whole)
        self.role.holder = self.applier
        self._run = script(self) if self.applier is None else self.applier.attend(script(self))

    @property
    def address(self) -> Address:
        return Address("worker", self.worker)

    def resume(self, delivery: Delivery | str | None) -> None:
        """Run the script until it waits or computes."""
        self.receiving = self.computing = self.reading = self.reads_in_place = False
        value = delivery
        while self.alive:
            try:
                wish = self._run.send(value)  # pyright: ignore[reportArgumentType]
            except StopIteration:
                self.finished = True
                self.world.close(self)
                return
            self._check_reads()
            value = None
            if self.yields_left == 0:
                self.world.close(self)
                return
            self.yields_left -= 1
            if isinstance(wish, Send):
                self.world.post(self.address, wish.to, wish.message, wish.attachments)
                continue
            if isinstance(wish, Together):
                self.why = f"do with its group {type(wish.what).__name__}"
                self.world.groups.come(self, wish)
            elif isinstance(wish, Receive):
                self.receiving, self.why = True, wish.why
            else:
                self.computing, self.reading, self.reads_in_place = True, wish.reads, wish.reads and self.role.memory == "shards"
                self.why = "compute"
            return

    def write(self, content: Content) -> None:
        """The gradient of this step goes into its buffer; the one that lay there must have been answered and read."""
        buffer = self.role.buffer
        old = self.arena.buffers[buffer]
        if old is not None and old.name not in self.world.refused and len(self.world.read.get(old.name, ())) < len(self.world.servers):
            raise Violation(f"worker {self.worker} overwrites {old.name}, which {self.world.read.get(old.name)} of the shards have read")
        self.arena.buffers[buffer] = content
        self.world.contents[content.name] = content

    def stop(self) -> None:
        self.alive = self.receiving = self.computing = self.reading = self.reads_in_place = False
        self._run.close()

    def _check_reads(self) -> None:
        if any(new < old for new, old in zip(self.role.versions, self._seen, strict=True)):
            raise Violation(f"worker {self.worker} read versions {self.role.versions} after {self._seen}")
        self._seen = list(self.role.versions)


class Observer:
    """Sees everything that the coordinator sees and decides; laws override what they need."""

    def before(self, sender: Address, message: Message | None) -> None:
        """A delivery to the coordinator; None: the sender is gone."""

    def after(self, effects: list[Effect]) -> None:
        """What the coordinator returned."""


class World:
    """The job of `settings`, its workers running `script`; `run` plays it to its end."""

    def __init__(
        self,
        settings: JobSettings,
        chance: random.Random,
        script: Script,
        *,
        observer: Observer | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.settings, self.script = settings, script
        self.random = chance
        self.now_s = 0.0
        self.num_events = 0
        self.coordinator = Coordinator(settings, 0.0, policy=policy)
        self.decisions: list[dict[str, object]] = []
        self.observer = observer or Observer()
        self.stores: dict[int, CountingStore] = {}
        self.servers = [Server(shard, self._build) for shard in range(settings.num_servers)]
        self.processes: dict[int, Process] = {}
        self.arenas: dict[tuple[int, int], Arena] = {}
        self.contents: dict[Name, Content] = {}
        self.read: dict[Name, set[int]] = {}
        self.refused: dict[Name, str] = {}
        self.groups = Groups(self)
        self.states: dict[type[Message], tuple[object, ...]] = {}
        self.ended: End | None = None
        self.events: list[dict[str, object]] = []
        self.warnings: list[str] = []
        self.channels: dict[tuple[Address, Address], deque[tuple[int, Message | None, tuple[object, ...]]]] = {}
        self.weights: dict[object, float] = {}
        self._incarnations: dict[int, int] = {}
        self._connected: dict[tuple[Address, Address], int] = {}
        for server in self.coordinator.job.servers:
            self.post(server, COORDINATOR, ServerHello(server.id, 0, "host"), ())

    def _build(self, serve: Serve, attachments: tuple[object, ...]) -> CountingStore:
        store = self.stores.setdefault(serve.shard, CountingStore(self, serve.shard))
        if serve.pace is not None:
            store.begin(serve.pace)
        return store

    # --- what happens from outside ------------------------------------------------------------------------

    def join(self, worker: int) -> Process:
        """Start a worker (again)."""
        incarnation = self._incarnations[worker] = self._incarnations.get(worker, -1) + 1
        process = self.processes[worker] = Process(self, worker, incarnation, self.script)
        for key in self.channels:
            if key[1] == process.address:
                self.channels[key].clear()
        return process

    def kill(self, worker: int) -> None:
        """End a worker without a word; what it sent before still arrives."""
        process = self.processes.get(worker)
        if process is not None and process.alive:
            self.close(process)

    def kill_soon(self, worker: int) -> None:
        """End a worker now, or in the midst of what it does next."""
        if (delay := self.random.randrange(4)) and worker in self.processes:
            self.processes[worker].yields_left = delay - 1
        else:
            self.kill(worker)

    def close(self, process: Process) -> None:
        """A worker's process ends: every peer that it spoke to sees the end of the connection."""
        process.stop()
        self.groups.gone(process)
        for key in list(self.channels):
            if key[0] == process.address:
                self.channels[key].append((process.role.incarnation, None, ()))
            elif key[1] == process.address:
                self.channels[key].clear()

    def set_pace(self, pace: Pace) -> None:
        """A user's move."""
        self._carry_out(self.coordinator.set_pace(pace, "a test wants it", self.now_s))

    def expire(self) -> None:
        """The coordinator's clock ticks."""
        self._carry_out(self.coordinator.expire(self.now_s))

    # --- messages -----------------------------------------------------------------------------------------

    def post(self, sender: Address, to: Address, message: Message | None, attachments: tuple[object, ...]) -> None:
        """Put a message on its channel; one to a worker whose connection is another incarnation's is lost."""
        incarnation = -1
        if sender.role == "worker":
            incarnation = self.processes[sender.id].role.incarnation
        elif to.role == "worker":
            incarnation = self._connected.get((sender, to), -1)
            process = self.processes.get(to.id)
            is_there = process is not None and process.alive and process.role.incarnation == incarnation
            if isinstance(message, Form):
                self.groups.told(to.id, incarnation if is_there else -1, message)
            if not is_there:
                return
        queue = self.channels.get((sender, to))
        if queue is None:
            queue = self.channels[sender, to] = deque()
            self.weights[sender, to] = self.random.choice((1.0, 1.0, 0.3, 0.05))
        queue.append((incarnation, message, attachments))

    def _deliver(self, sender: Address, to: Address) -> None:
        incarnation, message, attachments = self.channels[sender, to].popleft()
        if sender.role == "worker":
            self._connected[to, sender] = incarnation if message is not None else -1
        if to == COORDINATOR:
            if message is not None and attachments:
                self.states[type(message)] = attachments
            self.observer.before(sender, message)
            if message is None:
                self._carry_out(self.coordinator.left(sender, "killed", self.now_s))
            else:
                self._carry_out(self.coordinator.handle(sender, message, self.now_s))
        elif to.role == "server":
            server = self.servers[to.id]
            effects = server.left(sender) if message is None else server.handle(sender, message, attachments)
            self._send_all(to, effects)
        elif (process := self.processes[to.id]).alive:
            if isinstance(message, Halt):
                self.close(process)
            else:
                process.resume(Delivery(sender, message, attachments))  # pyright: ignore[reportArgumentType]

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Note) and effect.event["event"] == "refuse":
                worker, step = int(str(effect.event["worker"])), int(str(effect.event["step"]))
                name = max(name for name in self.contents if name[0] == worker and name[2] == step)
                if name in self.refused:
                    raise Violation(f"{name} is refused twice")
                self.refused[name] = str(effect.event["reason"])
        self.observer.after(effects)
        self._send_all(COORDINATOR, effects)

    def _send_all(self, sender: Address, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                restate = effect.message if isinstance(effect.message, Restate) else None
                state = self.states[Handed if restate.handed else Load] if restate else ()
                self.post(sender, effect.to, effect.message, effect.attachments or state)
            elif isinstance(effect, Note):
                self.events.append(effect.event)
            elif isinstance(effect, Decide):
                self.decisions.append(effect.record)
            elif isinstance(effect, Warn):
                self.warnings.append(effect.sentence)
            elif isinstance(effect, End):
                if sender != COORDINATOR:
                    raise Violation(effect.sentence)
                self.ended = effect

    # --- the scheduler ------------------------------------------------------------------------------------

    def run(self, mishaps: list[Mishap], *, max_events: int = 20_000) -> End:
        """Play to the end; a world that does not get there has hung."""
        ahead = deque(sorted(mishaps, key=lambda mishap: mishap.at))
        while self.ended is None:
            if self.num_events > max_events:
                raise Violation(f"no end after {max_events} events: {self.whereabouts()}")
            self.num_events += 1
            if ahead and ahead[0].at <= self.num_events:
                self._befall(ahead.popleft())
            elif not self._one_event():
                if ahead:
                    self._befall(ahead.popleft())
                else:
                    self.now_s = max(self.now_s, self.coordinator.deadline_s)
                    self.expire()
        return self.ended

    def _befall(self, mishap: Mishap) -> None:
        match mishap.kind:
            case "kill":
                self.kill_soon(mishap.worker)
            case "join":
                process = self.processes.get(mishap.worker)
                if process is None or not process.alive:
                    self.join(mishap.worker)
            case "pace":
                assert mishap.pace is not None
                self.set_pace(mishap.pace)
            case _:
                self.now_s += mishap.jump_s

    def _one_event(self) -> bool:
        """Choose among what may happen now; False when nothing can."""
        self.now_s += TICK_S
        if self.now_s >= self.coordinator.deadline_s:
            self.expire()
            return True
        choices: list[tuple[float, object]] = []
        total = 0.0
        for key, queue in self.channels.items():
            to = key[1]
            if queue and (to.role != "worker" or self.processes[to.id].receiving):
                total += self.weights[key]
                choices.append((total, key))
        for process in self.processes.values():
            if process.computing:
                total += self.weights.setdefault(process.worker, self.random.choice((0.3, 0.1, 0.02)))
                choices.append((total, process))
        for process in self.groups.able():
            total += self.weights.setdefault(("group", process.worker), self.random.choice((1.0, 0.3, 0.05)))
            choices.append((total, process))
        if not choices:
            return False
        at = self.random.random() * total
        chosen = next(choice for upto, choice in choices if at < upto)
        if isinstance(chosen, Process):
            chosen.resume(None if chosen.computing else self.groups.done(chosen))
        else:
            self._deliver(*chosen)  # pyright: ignore[reportGeneralTypeIssues]
        return True

    def whereabouts(self) -> str:
        """What everyone waits for, for a reader of a failed seed."""
        workers = "; ".join(f"worker {p.worker}: {p.why}" for p in self.processes.values() if p.alive)
        return f"pace {self.coordinator.job.pace.name}, version {self.coordinator.job.version}, {workers}"
