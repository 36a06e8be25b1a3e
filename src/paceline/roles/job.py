"""What the parts of the coordinator share: the order's place, the members, the books, and the outgoing effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.logic.fold import Pending, Weighed
from paceline.logic.gauges import Gauges
from paceline.logic.membership import Membership, Worker
from paceline.logic.progress import Progress
from paceline.messages import Address, Fold, Halt, Message, ModelSpec
from paceline.pace import Pace
from paceline.roles.accounts import Accounts
from paceline.roles.effects import Effect, End, JobSettings, Note, Send, Warn


class Since:
    """What was folded since the shards kept their state: `positions` and `samples` of `epoch`, of the ones before it `earlier` samples.

    `skipped` are positions of `epoch` that gave no finite gradients since.
    """

    def __init__(self) -> None:
        self.epoch = -1
        self.positions: list[int] = []
        self.skipped: list[int] = []
        self.samples = self.earlier = 0

    def enter(self, epoch: int) -> None:
        """What follows is of `epoch`, maybe still of the same."""
        if epoch != self.epoch:
            self.epoch, self.earlier, self.samples = epoch, self.earlier + self.samples, 0
            self.positions.clear()
            self.skipped.clear()

    def folded(self, positions: Sequence[int], samples: int) -> None:
        """A gradient of the epoch is in an update."""
        self.positions += positions
        self.samples += samples


class Update(NamedTuple):
    """An update that is in the order: `hyper` are its settings, `told` what its members tell of the noise, if it is measured."""

    fold: Fold
    weighed: Weighed
    hyper: bytes
    told: list[tuple[int, float]] | None


class Job:
    """The state that more than one part reads.

    `outbox` holds the effects of the event in hand, which came at `now_s`; `heard_s` is when a message came last.
    `servers` hold a shard each, the rest of `all_servers` none. `stopping` is why the run is to end early, empty while not;
    `said_bye`: some worker's script has ended well.
    `gauges` measure for a policy, None when nobody reads them. While the shards keep a state to go back to, `kept` says
    what was folded since; `floor` is the version of the last Restore. `divergence` is what became non-finite
    for good in the event in hand, empty while nothing has.
    `group` are the workers that hold all shards each, empty while the servers hold them; `vote` is the update that the group
    is summing. While the shards move from the ones to the others (`is_moving`) nothing is folded and nobody starts.
    `is_together`: a group is wanted wherever the pace allows one, so updates need every member.
    """

    def __init__(self, settings: JobSettings, now_s: float) -> None:
        self.settings = settings
        self.started_s = self.now_s = self.heard_s = now_s
        self.pace = settings.pace
        self.num_paces = 1
        self.version = 0
        self.members = Membership()
        self.progress = Progress()
        self.accounts = Accounts()
        self.all_servers = [Address("server", shard) for shard in range(settings.num_servers)]
        self.servers = self.all_servers
        self.pending: list[Pending] = []
        self.model: ModelSpec | None = None
        self.gradient_bytes = 0
        self.outbox: list[Effect] = []
        self.stopping = ""
        self.said_bye = self.ended = False
        self.gauges: Gauges | None = None
        self.kept: Since | None = None
        self.floor = 0
        self.divergence = ""
        self.group: tuple[int, ...] = ()
        self.vote: Update | None = None
        self.is_moving = False
        self.is_together = settings.route != "servers"

    @property
    def appliers(self) -> list[Address]:
        """Who applies the order: the servers, or the workers of the group."""
        return [Address("worker", number) for number in self.group] if self.group else self.servers

    @property
    def num_parts(self) -> int:
        """How many measure a part of an update each: the servers, or one of the group that measures all of it."""
        return 1 if self.group else len(self.servers)

    def send(self, to: Address, message: Message) -> None:
        """Queue a message."""
        self.outbox.append(Send(to, message))

    def tell(self, worker: Worker, message: Message) -> None:
        """Queue a message to a worker."""
        self.outbox.append(Send(worker.address, message))

    def order(self, message: Message) -> None:
        """Queue an entry of the order: everyone who applies it gets it."""
        for applier in self.appliers:
            self.outbox.append(Send(applier, message))

    def tell_servers(self, message: Message) -> None:
        """Queue a message to every server, whoever applies the order."""
        for server in self.servers:
            self.outbox.append(Send(server, message))

    def note(self, event: str, **fields: object) -> None:
        """Queue a line of `events.jsonl`."""
        self.outbox.append(Note({"event": event, **fields}))

    def warn(self, sentence: str) -> None:
        """Queue a sentence for the user."""
        self.outbox.append(Warn(sentence))

    def warn_if_clipped(self, pace: Pace) -> None:
        """Say so when fewer workers are live than `pace` wants different ones of; not at the end, when they leave anyway."""
        num_live, quorum = len(self.members.workers), pace.quorum
        if pace.distinct and quorum.rule == "count" and 0 < num_live < quorum.value and not self.said_bye:
            clipped = f"{num_live} are live: each update takes what they have"
            self.warn(f"pace {pace.name} asks for {quorum.value} different workers and {clipped}")

    def end(self, code: int, sentence: str) -> None:
        """End the job for everyone, once."""
        if self.ended:
            return
        self.ended = True
        if code:
            for worker in self.members.workers.values():
                self.tell(worker, Halt(code, sentence))
            for server in self.all_servers:
                self.send(server, Halt(code, sentence))
        self.note("end", code=code, sentence=sentence)
        self.outbox.append(End(code, sentence))

    def take_outbox(self) -> list[Effect]:
        """The effects of the event in hand, which has been dealt with."""
        outbox, self.outbox = self.outbox, []
        return outbox
