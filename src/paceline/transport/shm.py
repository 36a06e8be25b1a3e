"""Messages between the processes of one machine, over Unix sockets; the end of a connection is the death signal.

Nothing here blocks but `receive`: what a full socket does not take is queued, up to a cap, and a peer that does not
read for `stall_s` is lost.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Collection, Container, Sequence
from time import monotonic

import msgspec

from paceline.errors import PeerLostError, ProtocolError
from paceline.messages import Address, Message
from paceline.ports import Delivery
from paceline.transport.connection import (
    ANCILLARY_BYTES,
    INLINE_BYTES,
    MAX_ATTACHMENTS,
    RECEIVE_FLAGS,
    SEND_FLAGS,
    Connection,
    abstract,
    check_same_user,
    close_all,
    delivery_of,
    descriptors_in,
    greeting_of,
    pack,
    read_greeting,
)
from paceline.transport.forks import open_ports

STALL_S = 30.0

_MAX_UNNAMED = 64
_PACKETS_PER_SWEEP = 64
_IN, _OUT = 0x1, 0x4


class SocketPort:
    """A `ports.Port` over Unix sockets: connections are adopted, made (`connect`) or taken in (`listen`).

    A connection that does not greet as one of the expected peers, or comes from another user, is closed.
    Not for use by two threads; in a forked child every descriptor is closed.
    """

    def __init__(self, me: Address, *, stall_s: float = STALL_S) -> None:
        self.me = me
        self._stall_s = stall_s
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._peers: dict[Address, Connection] = {}
        self._full: set[Connection] = set()
        self._listener: socket.socket | None = None
        self._expected: Container[Address] = ()
        self._inbox: deque[Delivery] = deque()
        self._buffer = bytearray(INLINE_BYTES)
        self._view = memoryview(self._buffer)
        self._reasons: dict[Address, str] = {}
        open_ports.add(self)

    # --- connections --------------------------------------------------------------------------------------

    @property
    def peers(self) -> Collection[Address]:
        """Who is connected now."""
        return self._peers.keys()

    def fileno(self) -> int:
        """A descriptor that is readable when `receive` has something to do."""
        return self._epoll.fileno()

    def reason(self, peer: Address) -> str:
        """Why the connection of `peer` ended."""
        return self._reasons.get(peer, "its connection ended")

    def adopt(self, peer: Address, sock: socket.socket) -> None:
        """Take over a connected socket whose other end is known to be `peer`."""
        self._register(Connection(sock, peer))

    def connect(self, peer: Address, name: str, *, timeout_s: float = 10.0) -> None:
        """Connect to `peer`, who listens at the abstract `name`. Raises PeerLostError when nobody does."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.settimeout(timeout_s)
            sock.connect(abstract(name))
            check_same_user(sock)
            sock.send(greeting_of(self.me), SEND_FLAGS)
        except OSError as error:
            sock.close()
            raise PeerLostError(f"{self.me} cannot reach {peer}: {error.strerror or error}") from error
        except ProtocolError:
            sock.close()
            raise
        self._register(Connection(sock, peer))

    def listen(self, listener: socket.socket, expected: Container[Address]) -> None:
        """Take in connections of the `expected` peers from now on."""
        listener.setblocking(False)
        self._listener, self._expected = listener, expected
        self._epoll.register(listener.fileno(), _IN)

    def _register(self, connection: Connection) -> None:
        connection.sock.setblocking(False)
        self._connections[connection.sock.fileno()] = connection
        self._epoll.register(connection.sock.fileno(), _IN)
        if connection.address is not None:
            self._peers[connection.address] = connection

    # --- sending ------------------------------------------------------------------------------------------

    def send(self, to: Address, message: Message, attachments: Sequence[int] = ()) -> None:
        """Hand over a message, now or, when its socket is full, in a later `receive`. Never blocks."""
        connection = self._peers.get(to)
        if connection is None:
            raise PeerLostError(f"{self.me} cannot send {type(message).__name__} to {to}: {self.reason(to)}")
        if len(attachments) > MAX_ATTACHMENTS:
            raise ValueError(f"a message carries at most {MAX_ATTACHMENTS} attachments, got {len(attachments)}")
        packet, in_memory = pack(message)
        try:
            self._send(connection, packet, (*attachments, *in_memory))
        finally:
            close_all(in_memory)

    def _send(self, connection: Connection, packet: bytes, descriptors: Sequence[int]) -> None:
        if not connection.queue:
            try:
                connection.put(packet, descriptors)
                return
            except BlockingIOError:
                self._epoll.modify(connection.sock.fileno(), _IN | _OUT)
                self._full.add(connection)
            except OSError as error:
                raise PeerLostError(f"{self.me} cannot send to {connection.address}: {error.strerror or error}") from error
        elif connection.is_overfull:
            reason = f"it left {len(connection.queue)} messages unread"
            self._lose(connection, reason)
            raise PeerLostError(f"{connection.address} is lost to {self.me}: {reason}")
        connection.keep(packet, descriptors, monotonic())

    def _flush(self, connection: Connection, now_s: float) -> None:
        try:
            connection.flush(now_s)
        except OSError:
            # its end is about to be read as well, behind what it still had to say
            connection.drop_queue()
        if not connection.queue:
            self._full.discard(connection)
            self._epoll.modify(connection.sock.fileno(), _IN)

    def _drop_stalled(self, now_s: float) -> None:
        for connection in [c for c in self._full if now_s - c.stuck_since_s > self._stall_s]:
            self._lose(connection, f"it has not read its messages for {self._stall_s:g} s")

    # --- receiving ----------------------------------------------------------------------------------------

    def receive(self, timeout_s: float) -> Delivery | None:
        """The next delivery; several packets are taken at each wake-up."""
        if self._inbox:
            return self._inbox.popleft()
        deadline_s = monotonic() + timeout_s
        wait_s = max(timeout_s, 0.0)
        while True:
            self._sweep(min(wait_s, self._stall_s / 4) if self._full else wait_s)
            if self._inbox:
                return self._inbox.popleft()
            wait_s = deadline_s - monotonic()
            if wait_s <= 0.0:
                return None

    def _sweep(self, wait_s: float) -> None:
        for fd, events in self._epoll.poll(wait_s):
            connection = self._connections.get(fd)
            if connection is not None:
                if events & _OUT:
                    self._flush(connection, monotonic())
                if events & ~_OUT:
                    self._drain(connection)
            elif self._listener is not None and fd == self._listener.fileno():
                self._take_in(self._listener)
        if self._full:
            self._drop_stalled(monotonic())

    def _drain(self, connection: Connection) -> None:
        sock, inbox = connection.sock, self._inbox
        for _ in range(_PACKETS_PER_SWEEP):
            try:
                size, ancillary, flags, _ = sock.recvmsg_into([self._buffer], ANCILLARY_BYTES, RECEIVE_FLAGS)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # said once when the peer left something of ours unread; what it sent before is still to be had
                continue
            except OSError as error:
                self._lose(connection, str(error.strerror or error))
                return
            descriptors = descriptors_in(ancillary) if ancillary else ()
            if size == 0:
                close_all(descriptors)
                self._lose(connection, "its connection ended")
                return
            try:
                if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    raise ProtocolError("a packet is larger than any of ours")
                if connection.address is None:
                    self._greet(connection, self._view[:size], descriptors)
                else:
                    inbox.append(delivery_of(connection.address, self._view[:size], descriptors))
            except (ProtocolError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                close_all(descriptors)
                self._lose(connection, f"it sent what is no message of ours: {error}")
                return

    def _greet(self, connection: Connection, packet: memoryview, descriptors: Sequence[int]) -> None:
        """Learn who a new connection is from its first packet."""
        address = read_greeting(packet)
        if descriptors or address not in self._expected or address in self._peers:
            raise ProtocolError(f"{address} was not expected")
        connection.address = address
        self._peers[address] = connection
        self._reasons.pop(address, None)

    def _take_in(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            try:
                check_same_user(sock)
            except ProtocolError:
                sock.close()
                continue
            unnamed = [c for c in self._connections.values() if c.address is None]
            if len(unnamed) >= _MAX_UNNAMED:
                self._lose(unnamed[0], "it did not say who it is")
            self._register(Connection(sock, None))

    # --- ends ---------------------------------------------------------------------------------------------

    def _lose(self, connection: Connection, reason: str) -> None:
        """Close a connection; whoever receives is told once, after everything that came before."""
        self._close(connection)
        if connection.address is not None:
            del self._peers[connection.address]
            self._reasons[connection.address] = reason
            self._inbox.append(Delivery(connection.address, None))

    def _close(self, connection: Connection) -> None:
        self._full.discard(connection)
        del self._connections[connection.sock.fileno()]
        connection.drop_queue()
        connection.sock.close()

    def close(self, *, flush_s: float = 1.0) -> None:
        """Close everything, after up to `flush_s` for what is queued."""
        deadline_s = monotonic() + flush_s
        while self._full and monotonic() < deadline_s:
            for fd, _ in self._epoll.poll(max(0.0, min(0.05, deadline_s - monotonic()))):
                connection = self._connections.get(fd)
                if connection in self._full:
                    self._flush(connection, monotonic())
        for connection in list(self._connections.values()):
            self._close(connection)
        for delivery in self._inbox:
            close_all(delivery.attachments)
        self._inbox.clear()
        self._peers.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._epoll.close()
        open_ports.discard(self)

    def abandon(self) -> None:
        """Close the descriptors of a forked child's copy, and nothing that the parent still uses."""
        # unregistering would reach into the parent's epoll, which the child shares until its descriptor is closed
        self.close(flush_s=0.0)
