"""What a worker's session holds of the engine it runs on: the conversations' driver, memory, and who this worker is.

The session talks in generators (`roles.worker`); the link sends, waits with a deadline, and turns the end of the run
or of a peer into an exception.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple, TypeVar, cast

from paceline.config import Resolved
from paceline.engine.carry import carry, take_bytes
from paceline.engine.surroundings import Surroundings
from paceline.errors import DeadlineError, PacelineError, PeerLostError, RunEnded
from paceline.messages import COORDINATOR, Address, Convene, Disband, Form, Halt, Hello, Welcome
from paceline.ports import Delivery, Port
from paceline.roles.effects import Send
from paceline.roles.patience import LEAST_WAIT_S
from paceline.roles.talk import Receive, Talk
from paceline.transport import memory

T = TypeVar("T")

COORDINATOR_PATIENCES = 12
"""The coordinator judges who is late, so a worker waits longer for it than it waits for anybody."""
REASON_S = 5.0
"""How long the reason of a peer's end, a Halt or that the coordinator is gone, may take after that end: two heartbeats and more."""

CALLS_OFF = (Convene, Form, Disband, Halt)
"""After these nobody goes on with what a group was to do together."""


class Shared(NamedTuple):
    """Memory that others can map: `attachment` goes into a message, `memory` is this process's map of it."""

    attachment: int
    memory: mmap.mmap


class Member(NamedTuple):
    """Who this worker is, in which run."""

    worker: int
    incarnation: int
    num_workers: int
    num_servers: int


class Link:
    """A worker's access to the run: `resolved` are its settings, `joined` tells whether it has asked to be a member.

    `has_run`: its script has asked for its run already. `on_written` is to hear of gradients while they are made.
    `before_bye` is what the engine calls when the script has ended well, before it says goodbye.

    Not for use by two threads.
    """

    def __init__(self, port: Port, member: Member, resolved: Resolved, surroundings: Surroundings | None = None) -> None:
        self.member = member
        self.resolved = resolved
        self.surroundings = surroundings or Surroundings()
        self.joined = self.has_run = False
        self.on_written: Callable[[int, int], bool] | None = None
        self.before_bye: list[Callable[[], object]] = []
        self._port = port
        self._patience_s = max(resolved.settings.patience_s, LEAST_WAIT_S)
        self._owing: set[Address] = set()
        self._early: deque[Delivery] = deque()
        self._num_shards = member.num_servers

    # --- conversations ------------------------------------------------------------------------------------

    def drive(self, conversation: Talk[T]) -> T:
        """Run a conversation of `roles.worker` to its end and return its value.

        Raises RunEnded when the run is ended from elsewhere, PeerLostError when the coordinator or a server is
        gone, DeadlineError when nothing came for too long; each names who and what was waited for.
        """
        delivery: Delivery | None = None
        try:
            while True:
                wanted = conversation.send(delivery) if delivery is not None else next(conversation)
                if isinstance(wanted, Receive):
                    delivery = self._receive(wanted.why)
                else:
                    self._send(wanted)
                    delivery = None
        except StopIteration as end:
            return end.value

    def _send(self, send: Send) -> None:
        self._owing.add(send.to)
        self.joined = self.joined or isinstance(send.message, Hello)
        try:
            carry(self._port, send)
        except PeerLostError as error:
            # what is sent to the coordinator may have failed at a server: a Ready takes its gradient there first
            too = ", and the coordinator is gone" if self._await_reason() and str(COORDINATOR) not in str(error) else ""
            raise PeerLostError(f"worker {self.member.worker} cannot go on: {error}{too}") from None

    def _receive(self, why: str) -> Delivery:
        late = sorted(who for who in self._owing if who.role == "server")
        patience_s = self._patience_s * (1 if late else COORDINATOR_PATIENCES)
        delivery = self._next(patience_s)
        if delivery is None:
            names = ", ".join(map(str, late or [COORDINATOR]))
            raise DeadlineError(f"worker {self.member.worker} waited {patience_s:g} s for {names} to {why}")
        if isinstance(delivery.message, Halt):
            raise self._ended(delivery.sender, delivery.message)
        if isinstance(delivery.message, Welcome):
            self._num_shards = delivery.message.num_servers
        if delivery.message is None:
            too = " and the coordinator" if delivery.sender != COORDINATOR and self._await_reason() else ""
            raise PeerLostError(f"worker {self.member.worker} lost {delivery.sender}{too}, while it waited for {delivery.sender} to {why}")
        self._owing.discard(delivery.sender)
        return delivery

    def _next(self, timeout_s: float) -> Delivery | None:
        """The next delivery; the end of a server that holds no shard is none of this worker's business."""
        until_s = monotonic() + timeout_s
        while (delivery := self._take(max(0.0, until_s - monotonic()))) is not None:
            who = delivery.sender
            if delivery.message is not None or who.role != "server" or who.id < self._num_shards:
                break
        return delivery

    def _take(self, timeout_s: float) -> Delivery | None:
        return self._early.popleft() if self._early else self._port.receive(timeout_s)

    def is_called_off(self) -> bool:
        """Whether what this worker does together with others is of no use any more, by what has come since, which stays to be received."""
        while (delivery := self._port.receive(0.0)) is not None:
            self._early.append(delivery)
        return any(isinstance(come.message, CALLS_OFF) or (come.message is None and come.sender == COORDINATOR) for come in self._early)

    def _await_reason(self) -> bool:
        """Somebody is gone; if the coordinator or a server still tells the reason, that is what counts.

        Returns whether the coordinator is gone, too, which may be why the other one is.
        """
        until_s = monotonic() + REASON_S
        while (left_s := until_s - monotonic()) > 0.0:
            delivery = self._take(left_s)
            if delivery is not None and isinstance(delivery.message, Halt):
                raise self._ended(delivery.sender, delivery.message)
            if delivery is not None and delivery.message is None and delivery.sender.role != "server":
                return delivery.sender == COORDINATOR
        return False

    def _ended(self, sender: Address, halt: Halt) -> PacelineError:
        """The coordinator ends the run; a server can only say whom it has lost, and its workers with it."""
        if sender.role == "server":
            return PeerLostError(f"worker {self.member.worker} cannot go on: {halt.sentence}")
        return RunEnded(halt.code, halt.sentence)

    # --- memory -------------------------------------------------------------------------------------------

    def share(self, name: str, size_bytes: int) -> Shared:
        """New memory of zeros that servers can map; see `let_go`."""
        fd = memory.create(name, size_bytes)
        return Shared(fd, memory.map_shared(fd))

    def map(self, attachment: int, size_bytes: int) -> mmap.mmap:
        """The memory that a received attachment is, at least `size_bytes`; the attachment itself is used up."""
        try:
            return memory.map_shared(attachment, size_bytes)
        finally:
            os.close(attachment)

    def read(self, attachment: int) -> bytes:
        """A copy of what a received attachment holds; the attachment itself is used up."""
        return take_bytes(attachment)

    def bytes_of(self, part: object) -> bytes:
        """A part of a snapshot: bytes of this worker's own, or a received attachment, which is used up."""
        return part if isinstance(part, bytes) else self.read(cast(int, part))

    def let_go(self, attachment: int) -> None:
        """Close an attachment that nobody is to be given any more; maps of it live on."""
        os.close(attachment)

    def leave(self) -> None:
        """The script has ended well: whatever this worker still owes the others is done."""
        for call in self.before_bye:
            call()

    def close(self) -> None:
        """End every connection; what is still queued is sent first."""
        self._port.close()


_find: Callable[[], Link | None] | None = None


def install(link: Link) -> None:
    """Make `link` this process's own; an engine does so before it runs the script."""
    install_each(lambda: link)


def install_each(find: Callable[[], Link | None]) -> None:
    """Let `find` tell whose script asks, where the workers of a run share a process."""
    global _find
    _find = find


def current() -> Link | None:
    """The link of the engine that runs this process's script; None under plain python."""
    return None if _find is None else _find()
