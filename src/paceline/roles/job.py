"""What the parts of the coordinator share: the order's place, the members, the books, and the outgoing effects."""

from __future__ import annotations

from paceline.logic.fold import Pending
from paceline.logic.membership import Membership, Worker
from paceline.logic.progress import Progress
from paceline.messages import Address, Halt, Message, ModelSpec
from paceline.roles.accounts import Accounts
from paceline.roles.effects import Effect, End, JobSettings, Note, Send, Warn


class Job:
    """The state that more than one part reads.

    `outbox` holds the effects of the event in hand, which came at `now_s`; `heard_s` is when a message came last.
    `servers` hold a shard each, the rest of `all_servers` none. `stopping` is why the run is to end early, empty while not.
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
        self.ended = False

    def send(self, to: Address, message: Message) -> None:
        """Queue a message."""
        self.outbox.append(Send(to, message))

    def tell(self, worker: Worker, message: Message) -> None:
        """Queue a message to a worker."""
        self.outbox.append(Send(worker.address, message))

    def order(self, message: Message) -> None:
        """Queue an entry of the order: every server gets it."""
        for server in self.servers:
            self.outbox.append(Send(server, message))

    def note(self, event: str, **fields: object) -> None:
        """Queue a line of `events.jsonl`."""
        self.outbox.append(Note({"event": event, **fields}))

    def warn(self, sentence: str) -> None:
        """Queue a sentence for the user."""
        self.outbox.append(Warn(sentence))

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
