"""The connections for messages of one TCP port, used by the thread that owns it: what is sent, queued, received, and lost.

Nothing blocks but `receive`. A queue that is full or does not move, or a frame that does not end, loses its peer.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

import msgspec

from paceline.errors import PeerLostError, ProtocolError
from paceline.messages import Address, Message, decode, encode
from paceline.ports import Delivery
from paceline.transport.connection import MAX_ATTACHMENTS, close_all
from paceline.transport.luggage import Luggage, frames_of
from paceline.transport.peer import Peer
from paceline.transport.stream import Line, Outgoing, Stream
from paceline.transport.wire import MAX_MESSAGE_BYTES, Kind

_KINDS = (Kind.MESSAGE, Kind.MEMORY, Kind.PART, Kind.AGAIN)


class Control:
    """A peer's connection for messages, and the attachments that have come for the next one."""

    def __init__(self, peer: Peer, line: Line, help_out: Callable[[Stream], None]) -> None:
        self.peer = peer
        self.stream = Stream(line, _KINDS, help_out)
        self.luggage = Luggage()


class Switchboard:
    """All peers' connections for messages.

    `help_out` sees to it that a full socket's queue goes on while this thread computes; `ended` hears of each peer that is gone.
    """

    def __init__(self, me: Address, *, stall_s: float, help_out: Callable[[Stream], None], ended: Callable[[Peer], None]) -> None:
        self.controls: dict[Address, Control] = {}
        self.moves = 0
        self.is_waiting = False
        self._me = me
        self._stall_s = stall_s
        self._help_out = help_out
        self._ended = ended
        self._epoll = select.epoll()
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._waker, select.EPOLLIN)
        self._by_fd: dict[int, Control] = {}
        self._judge_due_s = 0.0
        self._inbox: deque[Delivery] = deque()
        self._reasons: dict[Address, str] = {}
        self._newcomers: deque[tuple[Peer, Line]] = deque()

    def fileno(self) -> int:
        """A descriptor that is readable when `receive` has something to do."""
        return self._epoll.fileno()

    def reason(self, peer: Address) -> str:
        """Why a peer is not there."""
        return self._reasons.get(peer, "its connection ended")

    # --- newcomers --------------------------------------------------------------------------------------------

    def offer(self, peer: Peer, line: Line) -> None:
        """A connection of a new peer, from any thread."""
        self._newcomers.append((peer, line))
        os.eventfd_write(self._waker, 1)

    def adopt(self) -> None:
        """Take over the connections that were offered."""
        while self._newcomers:
            peer, line = self._newcomers.popleft()
            if peer.address in self.controls:
                # two that connect to each other at once: the first connection stays
                peer.close(line.sock)
                peer.lose("it is connected already")
                self._ended(peer)
                continue
            control = Control(peer, line, self._help_out)
            self.controls[peer.address] = self._by_fd[line.sock.fileno()] = control
            self._reasons.pop(peer.address, None)
            self._epoll.register(line.sock.fileno(), select.EPOLLIN)

    # --- sending ------------------------------------------------------------------------------------------------

    def send(self, to: Address, message: Message, generation: int, attachments: Sequence[int]) -> None:
        """Send or queue a message; `ports.Port.send`."""
        self.adopt()
        self.moves += 1
        control = self.controls.get(to)
        if control is None or control.stream.has_ended:
            raise PeerLostError(f"{self._me} cannot send {type(message).__name__} to {to}: {self.reason(to)}")
        if len(attachments) > MAX_ATTACHMENTS:
            raise ValueError(f"a message carries at most {MAX_ATTACHMENTS} attachments, got {len(attachments)}")
        payload = encode(message)
        if len(payload) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message has at most {MAX_MESSAGE_BYTES} bytes, this {type(message).__name__} has {len(payload)}")
        if control.stream.is_overfull:
            self._lose(control, f"it left {control.stream.num_unread} messages unread")
            raise PeerLostError(f"{to} is lost to {self._me}: {self.reason(to)}")
        frames = frames_of(attachments, generation) if attachments else []
        control.stream.put([*frames, Outgoing(Kind.MESSAGE, generation, payload)])

    # --- receiving ------------------------------------------------------------------------------------------------

    def receive(self, timeout_s: float) -> Delivery | None:
        """The next delivery; `ports.Port.receive`."""
        self.moves += 1
        if self._inbox:
            return self._inbox.popleft()
        deadline_s = monotonic() + timeout_s
        wait_s = max(timeout_s, 0.0)
        self.is_waiting = True
        try:
            while True:
                # what has begun has a deadline that no event tells of
                self._sweep(min(wait_s, self._stall_s / 8) if self._by_fd else wait_s)
                if self._inbox:
                    return self._inbox.popleft()
                wait_s = deadline_s - monotonic()
                if wait_s <= 0.0:
                    return None
        finally:
            self.is_waiting = False

    def _sweep(self, wait_s: float) -> None:
        for fd, _ in self._epoll.poll(wait_s):
            control = self._by_fd.get(fd)
            if control is not None:
                self._drain(control)
            elif fd == self._waker:
                os.eventfd_read(self._waker)
                self.adopt()
        now_s = monotonic()
        if now_s >= self._judge_due_s:
            self._judge_due_s = now_s + self._stall_s / 8
            self._drop_stalled(now_s)

    def _drain(self, control: Control) -> None:
        address, stream, lost = control.peer.address, control.stream, control.peer.reason
        try:
            while True:
                for frame, payload in stream.read(monotonic(), self._stall_s):
                    if frame.kind is Kind.MESSAGE:
                        self._inbox.append(Delivery(address, decode(payload), control.luggage.hand_over()))
                    else:
                        control.luggage.add(frame, payload)
                if not stream.has_more:
                    return
        except EOFError:
            self._lose(control, lost or "its connection ended")
        except (ProtocolError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._lose(control, f"it sent what is no message of ours: {error}")
        except OSError as error:
            self._lose(control, lost or error.strerror or str(error))

    def _drop_stalled(self, now_s: float) -> None:
        for control in list(self._by_fd.values()):
            stream = control.stream
            if not stream.is_clear and now_s - stream.stuck_since_s > self._stall_s:
                self._lose(control, f"it has not read its messages for {self._stall_s:g} s")
            elif stream.due_s and now_s > stream.due_s:
                self._lose(control, f"a message of it began, and nothing more came for {self._stall_s:g} s")

    # --- ends -----------------------------------------------------------------------------------------------------

    def _lose(self, control: Control, reason: str) -> None:
        """Close a peer's connections; whoever receives is told once, after everything that came before."""
        address = control.peer.address
        self._close(control, reason)
        self._reasons[address] = control.peer.reason
        self._inbox.append(Delivery(address, None))

    def _close(self, control: Control, reason: str) -> None:
        sock = control.stream.sock
        del self._by_fd[sock.fileno()], self.controls[control.peer.address]
        self._epoll.unregister(sock.fileno())
        control.stream.drop_queue()
        control.luggage.drop()
        control.peer.close(sock)
        control.peer.lose(reason)
        control.peer.settle()
        self._ended(control.peer)

    def close(self, flush_s: float) -> None:
        """Close all of them, after up to `flush_s` for what is queued."""
        self.adopt()
        deadline_s = monotonic() + flush_s
        busy = [control.stream for control in self._by_fd.values() if not control.stream.is_clear]
        while busy and (left_s := deadline_s - monotonic()) > 0.0:
            wait = select.poll()
            for stream in busy:
                wait.register(stream, select.POLLOUT)
            wait.poll(min(left_s, 0.05) * 1000)
            busy = [stream for stream in busy if not stream.go_on()]
        for control in list(self._by_fd.values()):
            control.stream.say_goodbye()
            self._close(control, "the port was closed")
        for delivery in self._inbox:
            close_all(delivery.attachments)
        self._inbox.clear()
        self._epoll.close()
        os.close(self._waker)

    def abandon(self) -> None:
        """Close the descriptors of a forked child's copy, and nothing that the parent still uses."""
        for peer in [*(control.peer for control in self._by_fd.values()), *(peer for peer, _ in self._newcomers)]:
            peer.abandon()
        self._epoll.close()
        os.close(self._waker)
