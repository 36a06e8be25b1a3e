"""A connection of sealed frames that never blocks: what the kernel does not take is queued, up to a cap.

TLS sockets are the same to it: there, "would block" has another exception.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import NamedTuple

from paceline.transport.connection import MAX_QUEUED, MAX_QUEUED_BYTES
from paceline.transport.handshake import Session
from paceline.transport.wire import Frame, FrameReader, FrameWriter, Kind, Seal

JOIN_BYTES = 1 << 14
BUFFER_BYTES = 1 << 18

_READ_BYTES = 1 << 16
_READS_PER_SWEEP = 16
_RDHUP = getattr(select, "POLLRDHUP", 0x2000)

WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
STALLED = (BlockingIOError, TimeoutError)


def hurry(sock: socket.socket) -> None:
    """Send small frames at once, from the handshake on: one that waits for an acknowledgement waits 40 ms."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def give_up_after(sock: socket.socket, timeout_s: float) -> None:
    """End a connection whose bytes are not acknowledged, or find no room, for so long."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(timeout_s * 1000))


def bound(sock: socket.socket, *, stall_s: float) -> None:
    """Make a socket blocking, with a deadline on every call that does not move; passing it raises one of `STALLED`."""
    if isinstance(sock, ssl.SSLSocket):
        # TLS takes a blocking socket's "not now" for "again"
        sock.settimeout(stall_s)
        return
    sock.setblocking(True)
    interval = struct.pack("ll", int(stall_s), int(stall_s % 1 * 1e6))
    # the kernel's own deadline, so that one call can wait for a whole piece
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)


def shut(sock: socket.socket) -> None:
    """End both directions; whoever waits on the socket, in any thread, wakes up."""
    with suppress(OSError):
        # the method of a TLS socket would take its TLS away under the thread that uses it
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class Line(NamedTuple):
    """A connection after its handshake: the socket, the seals of what is sent and received, and who is at the other end."""

    sock: socket.socket
    seals: tuple[Seal, Seal]
    session: Session


class Outgoing(NamedTuple):
    """A frame that is not sealed yet."""

    kind: Kind
    generation: int
    payload: bytes | memoryview


class Stream:
    """One connection, of which frames of `kinds` may come, and what waits to be sent in it.

    One thread puts frames in and reads; `help_out` asks another to call `go_on` when the socket takes more.
    """

    def __init__(self, line: Line, kinds: Collection[Kind], help_out: Callable[[Stream], None] | None = None) -> None:
        sock = line.sock
        sock.setblocking(False)
        # a connection of small frames needs no more, and a peer that does not read is noticed sooner
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self.sock = sock
        self.stuck_since_s = 0.0
        self.due_s = 0.0
        """Until when more must come of the frame that has begun; 0 between frames."""
        self._writer = FrameWriter(line.seals[0])
        self._reader = FrameReader(line.seals[1], kinds, line.session.peer.generation)
        self._queue: deque[Outgoing] = deque()
        self._leaving: deque[memoryview] = deque()
        self._num_messages = 0
        self._queued_bytes = 0
        self._help_out = help_out
        self._is_helped = False
        # a TLS socket is not for two threads at once, even one that reads and one that writes
        self._lock = Lock()
        self._poll = select.poll()
        self._poll.register(sock.fileno(), _RDHUP)

    # --- sending ------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.sock.fileno()

    @property
    def has_ended(self) -> bool:
        """Whether the other end has closed its side, even if what it sent is still to be read."""
        return bool(self._poll.poll(0))

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._queue and not self._leaving

    @property
    def num_unread(self) -> int:
        """How many messages the other end has left to wait."""
        return self._num_messages

    @property
    def is_overfull(self) -> bool:
        """Whether the peer has left so much unread that it is given up."""
        return self._num_messages >= MAX_QUEUED or self._queued_bytes >= MAX_QUEUED_BYTES

    def put(self, frames: Collection[Outgoing]) -> None:
        """Send frames now, as far as they go, and the rest later; views into memory that stays their owner's count nothing."""
        with self._lock:
            if self.is_clear:
                self.stuck_since_s = monotonic()
            self._queue.extend(frames)
            for frame in frames:
                self._num_messages += frame.kind is Kind.MESSAGE
                self._queued_bytes += len(frame.payload) if frame.kind is Kind.MESSAGE else 0
            if not self._is_helped:
                self._flush()
                self._is_helped = not self.is_clear and self._help_out is not None
                if self._is_helped and self._help_out is not None:
                    self._help_out(self)

    def go_on(self) -> bool:
        """Send what is queued, as far as it goes; whether that was all."""
        with self._lock:
            self._flush()
            self._is_helped = self._is_helped and not self.is_clear
            return self.is_clear

    def _flush(self) -> None:
        try:
            while self._leaving or self._seal_next():
                head = self._leaving[0]
                sent = self.sock.send(head)
                self.stuck_since_s = monotonic()
                if sent < len(head):
                    self._leaving[0] = head[sent:]
                else:
                    self._leaving.popleft()
        except WOULD_BLOCK:
            return
        except OSError:
            # its end is about to be read as well, behind what it still had to say
            self._drop()

    def _seal_next(self) -> bool:
        if not self._queue:
            return False
        kind, generation, payload = self._queue.popleft()
        if kind is Kind.PART:
            # its owner may write into it, and what leaves must be what was sealed
            payload = bytes(payload)
        header = self._writer.header(kind, generation, payload)
        if kind is Kind.MESSAGE:
            self._num_messages -= 1
            self._queued_bytes -= len(payload)
        if len(payload) <= JOIN_BYTES:
            self._leaving.append(memoryview(header + payload))
        else:
            self._leaving.extend((memoryview(header), memoryview(payload)))
        return True

    def drop_queue(self) -> None:
        """Forget what is queued."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._queue.clear()
        self._leaving.clear()
        self._num_messages = self._queued_bytes = 0

    def say_goodbye(self) -> None:
        """End our side, and read what was left unread: with that in it, a close would be a reset that overtakes what was sent."""
        with suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_WR)
            while socket.socket.recv(self.sock, _READ_BYTES):
                continue

    # --- receiving ----------------------------------------------------------------------------------------

    def read(self, now_s: float, stall_s: float) -> Iterator[tuple[Frame, bytes]]:
        """The frames that have come. Ends at what would block; raises EOFError at the end, ProtocolError at a bad frame."""
        for _ in range(_READS_PER_SWEEP):
            try:
                with self._lock:
                    data = self.sock.recv(_READ_BYTES)
            except WOULD_BLOCK:
                break
            except ConnectionResetError:
                # said once when the peer left something of ours unread; what it sent before is still to be had
                continue
            if not data:
                raise EOFError
            self._reader.feed(data)
            while (item := self._reader.next()) is not None:
                yield item
            self.due_s = now_s + stall_s if self._reader.missing_bytes else 0.0

    @property
    def has_more(self) -> bool:
        """Whether TLS has read more of the socket than was asked for, which no poll can see."""
        with self._lock:
            return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0
