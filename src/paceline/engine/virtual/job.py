"""The roles of one job on a timeline: carries every message over the network, and holds no rule of its own.

Who the workers are (threads with scripts, or mere counters) is `Member`'s; who keeps the record is `Books`'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf

from msgspec.structs import replace

from paceline.engine.virtual.member import Member
from paceline.engine.virtual.network import Network
from paceline.engine.virtual.seams import Books, Luggage
from paceline.engine.virtual.service import Service
from paceline.engine.virtual.timeline import Timeline
from paceline.errors import ExitCode, PacelineError
from paceline.logic.gate import admit
from paceline.logic.partition import borders_of, layout_of
from paceline.messages import COORDINATOR, Address, Bye, Failed, Fold, Measured, Message, Params, Ready, Serve, ServerHello
from paceline.ports import Delivery
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import Effect, End, JobSettings, Note, Send
from paceline.roles.server import Server, ShardStore

HOST = "virtual"


class Push:
    """A gradient on its way: how many shards lack it, and when the worker knows that all of the others have it."""

    __slots__ = ("known_s", "member", "num_left", "ready")

    def __init__(self, member: Member, ready: Ready, num_left: int) -> None:
        self.member, self.ready, self.num_left = member, ready, num_left
        self.known_s = 0.0


class Job:
    """Coordinator and servers of one job; `end` is there when it is over. Without `luggage` nothing has attachments."""

    def __init__(
        self,
        settings: JobSettings,
        timeline: Timeline,
        network: Network,
        *,
        build: Callable[[Serve, tuple[object, ...]], ShardStore],
        books: Books,
        luggage: Luggage | None = None,
    ) -> None:
        self.timeline, self.network = timeline, network
        self.coordinator = Coordinator(settings, timeline.now_s)
        self.servers = [Server(shard, build) for shard in range(settings.num_servers)]
        self.members: dict[int, Member] = {}
        self.end: End | None = None
        self._books, self._luggage = books, luggage
        self._shard_bytes: list[int] = []
        self._services = [Service(timeline, network.apply_bytes_per_s) for _ in self.servers]
        self._known: list[dict[int, Member]] = [{} for _ in range(settings.num_servers + 1)]
        self._cut_short: dict[int, Member] = {}
        self._wake_s = inf
        for shard in range(settings.num_servers):
            timeline.at(0.0, self._to_coordinator, Address("server", shard), ServerHello(shard, 0, f"{HOST}-server-{shard}"), ())

    @property
    def model_bytes(self) -> int:
        """What one pull of every shard moves."""
        return sum(self._shard_bytes)

    # --- workers ------------------------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        """A worker is started (again)."""
        self.members[member.id] = member
        member.begin()

    def absent(self, worker: int) -> None:
        """The first gathering is not to wait for this worker, which comes later."""
        self.timeline.at(0.0, self._to_coordinator, Address("worker", worker), Bye(), ())

    def kill(self, worker: int, reason: str) -> None:
        """End a worker without a word; what it has sent still arrives, and then the end of its connections."""
        member = self.members.get(worker)
        if member is None or not member.alive:
            return
        self._cut_short.pop(worker, None)
        member.stop()
        self.timeline.after(member.ways.coordinator_s, self._left, member, reason)
        for server, way in zip(self.servers, member.ways.to_servers, strict=True):
            self.timeline.after(way.latency_s, self._services[server.shard].take, None, 0, self._left_server, server, member)

    def fail(self, failed: Failed) -> None:
        """A worker's script cannot go on, and so neither can the run."""
        self.coordinator.job.end(failed.code, failed.sentence)
        self._carry_out(self.coordinator.job.take_outbox())

    def interrupt(self, code: int, sentence: str) -> None:
        """The run is ended from outside."""
        self.fail(Failed(code, sentence))

    def cut_short(self, error: PacelineError) -> None:
        """Nothing happens any more, for a reason outside of the job: its books close as they are."""
        self.coordinator.job.end(error.exit_code, str(error))

    def _left(self, member: Member, reason: str) -> None:
        if self.end is None:
            self._carry_out(self.coordinator.left(member.address, reason, self.timeline.now_s))
            self._keep_time()

    def _left_server(self, server: Server, member: Member) -> None:
        if self._known[server.shard].get(member.id) is member:
            del self._known[server.shard][member.id]
            self._from_server(server.shard, server.left(member.address))

    # --- what workers send --------------------------------------------------------------------------------

    def post(self, member: Member, to: Address, message: Message, attachments: Sequence[object] = ()) -> None:
        """A worker sends; a gradient's bytes go before its Ready."""
        packed = self._luggage.pack(attachments) if attachments and self._luggage is not None else ()
        if to.role == "server":
            self.timeline.after(member.ways.to_servers[to.id].latency_s, self._serve, to.id, member, message, packed)
        elif type(message) is Ready:
            self._push(member, message)
        else:
            self.timeline.after(member.ways.coordinator_s, self._from_worker, member, message, packed)

    def _push(self, member: Member, ready: Ready) -> None:
        """Carry the gradient to every server; each says that it has it, then the coordinator is told."""
        num_shards = len(self._shard_bytes)
        push = Push(member, ready, num_shards)
        now_s, ways = self.timeline.now_s, member.ways
        for way, back, size in zip(ways.to_servers, ways.from_servers, self._shard_bytes, strict=False):
            own_s, there_and_back_s = size * num_shards * way.own_s, way.latency_s + back.latency_s
            if way.link is None:
                push.known_s = max(push.known_s, now_s + own_s + there_and_back_s)
                push.num_left -= 1
            else:
                way.link.carry(size, self._pushed, push, now_s + own_s, there_and_back_s)
        if not push.num_left:
            self._tell_of(push)

    def _pushed(self, push: Push, not_before_s: float, there_and_back_s: float) -> None:
        push.known_s = max(push.known_s, max(not_before_s, self.timeline.now_s) + there_and_back_s)
        push.num_left -= 1
        if not push.num_left:
            self._tell_of(push)

    def _tell_of(self, push: Push) -> None:
        self.timeline.at(push.known_s, self._ready, push.member, push.ready)

    def _ready(self, member: Member, ready: Ready) -> None:
        if member.alive:
            self.timeline.after(member.ways.coordinator_s, self._from_worker, member, ready, ())

    def _from_worker(self, member: Member, message: Message, attachments: tuple[int, ...]) -> None:
        self._known[-1][member.id] = member
        self._to_coordinator(member.address, message, attachments)

    def _to_coordinator(self, sender: Address, message: Message, attachments: tuple[int, ...]) -> None:
        if attachments and self._luggage is not None:
            self._luggage.keep(message, attachments, sender, self.coordinator)
        if self.end is None:
            self._carry_out(self.coordinator.handle(sender, message, self.timeline.now_s))
            self._keep_time()

    # --- what the coordinator says ------------------------------------------------------------------------

    def carry_out(self, effects: list[Effect]) -> None:
        """Carry out what the coordinator returned to whoever spoke to it in the engine's name."""
        self._carry_out(effects)
        self._keep_time()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                self._send(effect)  # type: ignore[arg-type]
            elif kind is Note:
                self._books.note(effect.event, self.timeline.now_s)  # type: ignore[union-attr]
            elif kind is End:
                self.end = effect  # type: ignore[assignment]
            else:
                self._books.take(effect, self)

    def _send(self, send: Send) -> None:
        attachments: tuple[int, ...] = ()
        if self._luggage is not None:
            send = self._luggage.attach(send, self.coordinator)
            attachments = self._luggage.pack(send.attachments)
        to, message = send.to, send.message
        if to.role == "server":
            if type(message) is Fold and to.id == 0 and self._cut_short:
                self._drop_at_once(message.version)
            self.timeline.after(self.network.server_latencies_s[to.id], self._serve, to.id, None, message, attachments)
        elif (member := self._known[-1].get(to.id)) is not None:
            self.timeline.after(member.ways.coordinator_s, self._deliver, member, COORDINATOR, message, attachments)

    def _drop_at_once(self, version: int) -> None:
        """The update makes steps late that are being computed; those whose group says so are told to stop."""
        pace = self.coordinator.job.pace
        for member in list(self._cut_short.values()):
            if not admit(pace, norm=1.0, base=min(member.bases[: len(self._shard_bytes)]), version=version).ok:
                self.timeline.after(member.ways.coordinator_s, self._stop_step, member, member.num_steps)

    def _stop_step(self, member: Member, step: int) -> None:
        if member.alive and member.num_steps == step and self._cut_short.pop(member.id, None) is not None:
            member.cut_short()

    def computing(self, member: Member, *, is_begun: bool) -> None:
        """A worker whose dropped steps end at once begins one, or has ended it."""
        if is_begun:
            self._cut_short[member.id] = member
        else:
            self._cut_short.pop(member.id, None)

    def _keep_time(self) -> None:
        due_s = self.coordinator.deadline_s
        if due_s < self._wake_s:
            self._wake_s = due_s
            self.timeline.at(due_s, self._wake, due_s)

    def _wake(self, due_s: float) -> None:
        if due_s != self._wake_s or self.end is not None:
            return
        self._wake_s = inf
        if self.timeline.now_s >= self.coordinator.deadline_s:
            self._carry_out(self.coordinator.expire(self.timeline.now_s))
        self._keep_time()

    # --- what servers do ----------------------------------------------------------------------------------

    def _serve(self, shard: int, member: Member | None, message: Message, attachments: tuple[int, ...]) -> None:
        """A message of a worker, or of the coordinator (None), which waits for its turn."""
        opened: tuple[object, ...] = ()
        if attachments and self._luggage is not None:
            opened = self._luggage.open(message, attachments)
        if type(message) is Serve:
            layout = layout_of(message.model)
            borders = borders_of(layout, message.num_shards, elementwise=message.model.elementwise)
            self._shard_bytes = [stop - start for start, stop in pairwise(borders)]
        size = self._shard_bytes[shard] if shard < len(self._shard_bytes) else 0
        self._services[shard].take(message, size, self._handle, shard, member, message, opened)

    def _handle(self, shard: int, member: Member | None, message: Message, opened: tuple[object, ...]) -> None:
        server, service, sender = self.servers[shard], self._services[shard], COORDINATOR
        if member is not None:
            self._known[shard][member.id], sender = member, member.address
        version = server.version
        self._from_server(shard, server.handle(sender, message, opened))
        if server.version != version:
            service.busy_s = 0.0

    def _from_server(self, shard: int, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, End):
                self.fail(Failed(effect.code, effect.sentence))
            elif isinstance(effect, Send) and effect.to.role == "worker":
                member = self._known[shard].get(effect.to.id)
                if member is not None:
                    self._answer(shard, member, effect)
            elif isinstance(effect, Send):
                message, latency_s = effect.message, self.network.server_latencies_s[shard]
                if isinstance(message, Measured):
                    message = replace(message, busy_s=self._services[shard].busy_s)
                self.timeline.after(latency_s, self._to_coordinator, Address("server", shard), message, ())

    def _answer(self, shard: int, member: Member, send: Send) -> None:
        attachments = self._luggage.pack(send.attachments) if send.attachments and self._luggage is not None else ()
        way, sender = member.ways.from_servers[shard], self.coordinator.job.all_servers[shard]
        if type(send.message) is Params:
            size, num_shards = self._shard_bytes[shard], len(self._shard_bytes)
            self.network.carry(way, size, num_shards, self._deliver, member, sender, send.message, attachments)
        else:
            self.timeline.after(way.latency_s, self._deliver, member, sender, send.message, attachments)

    def _deliver(self, member: Member, sender: Address, message: Message, attachments: tuple[int, ...]) -> None:
        if member.alive:
            if type(message) is Params:
                member.bases[sender.id] = message.version
            member.arrive(Delivery(sender, message, attachments))
        else:
            self.drop(attachments)

    def drop(self, attachments: tuple[int, ...]) -> None:
        """Nobody takes these."""
        if self._luggage is not None:
            self._luggage.drop(attachments)

    # --- running ------------------------------------------------------------------------------------------

    def run(self, look: Callable[[], None] | None = None) -> End:
        """Let things happen until the job is over; `look` is called before each. The coordinator's deadlines see to an end."""
        step = self.timeline.step
        while self.end is None:
            if look is not None:
                look()
            if not step():
                self.fail(Failed(ExitCode.DEADLINE_PASSED, "nothing is left to happen, and the run is not over"))
        assert self.end is not None
        return self.end
