"""One Unix socket of whole packets, with descriptors on board and a queue for what it does not take at once.

A packet is a message; one above `INLINE_BYTES` travels in a memory file, and its packet is a mark.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from paceline.errors import ProtocolError
from paceline.messages import Address, Message, decode, encode
from paceline.ports import Delivery
from paceline.transport import memory

INLINE_BYTES = 1 << 16
MAX_MESSAGE_BYTES = 1 << 28
MAX_ATTACHMENTS = 4
MAX_QUEUED = 4096
MAX_QUEUED_BYTES = 1 << 26

# 0xc1 is the one byte that no msgpack value begins with
IN_MEMORY = b"\xc1"
_DESCRIPTOR_BYTES = array.array("i").itemsize
ANCILLARY_BYTES = socket.CMSG_SPACE((MAX_ATTACHMENTS + 1) * _DESCRIPTOR_BYTES)
RECEIVE_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
SEND_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)

_GREETING = "paceline 1"
_greetings = msgspec.msgpack.Decoder(tuple[str, str, int])


def greeting_of(me: Address) -> bytes:
    """The first packet of a connection: who makes it."""
    return msgspec.msgpack.encode((_GREETING, me.role, me.id))


def read_greeting(packet: memoryview) -> Address:
    """Who made a connection. Raises ProtocolError or a MsgspecError when the packet is no greeting."""
    greeting, role, number = _greetings.decode(packet)
    if greeting != _GREETING:
        raise ProtocolError(f"a peer greeted with {greeting!r} instead of {_GREETING!r}")
    return Address(role, number)


def pack(message: Message) -> tuple[bytes, tuple[int, ...]]:
    """The packet of a message, and the memory file that holds it when it is large, for the caller to close."""
    packet = encode(message)
    if len(packet) <= INLINE_BYTES:
        return packet, ()
    if len(packet) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message has at most {MAX_MESSAGE_BYTES} bytes, this {type(message).__name__} has {len(packet)}")
    return IN_MEMORY, (memory.create_from("message", packet),)


def listener_at(name: str) -> socket.socket:
    """A listening socket at an abstract name, which exists as long as someone holds it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(abstract(name))
    listener.listen(1024)
    return listener


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets, for a parent and its child (`SocketPort.adopt`)."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def abstract(name: str) -> bytes:
    """The socket address of an abstract name: it lies in no directory and vanishes with its socket."""
    return b"\0" + name.encode()


def check_same_user(sock: socket.socket) -> None:
    """Raise ProtocolError when the process at the other end runs as another user."""
    uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    if uid != os.getuid():
        raise ProtocolError(f"the other end of a local connection belongs to user {uid}, not to {os.getuid()}")


class Connection:
    """One socket, whose it is (None until it has said so), and what waits to be sent."""

    __slots__ = ("address", "queue", "queued_bytes", "sock", "stuck_since_s")

    def __init__(self, sock: socket.socket, address: Address | None) -> None:
        self.sock = sock
        self.address = address
        self.queue: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self.queued_bytes = 0
        self.stuck_since_s = 0.0

    def put(self, packet: bytes, descriptors: Sequence[int]) -> None:
        """Hand one packet to the kernel; raises BlockingIOError when it has no room."""
        if descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            self.sock.sendmsg([packet], [rights], SEND_FLAGS)
        else:
            self.sock.send(packet, SEND_FLAGS)

    @property
    def is_overfull(self) -> bool:
        """Whether the peer has left so much unread that it is given up."""
        return len(self.queue) >= MAX_QUEUED or self.queued_bytes >= MAX_QUEUED_BYTES

    def keep(self, packet: bytes, descriptors: Sequence[int], now_s: float) -> None:
        """Queue a packet for `flush`."""
        if not self.queue:
            self.stuck_since_s = now_s
        self.queue.append((packet, tuple(os.dup(fd) for fd in descriptors)))
        self.queued_bytes += len(packet)

    def flush(self, now_s: float) -> None:
        """Send what is queued, as far as it goes."""
        while self.queue:
            packet, descriptors = self.queue[0]
            try:
                self.put(packet, descriptors)
            except BlockingIOError:
                return
            self.queue.popleft()
            self.queued_bytes -= len(packet)
            self.stuck_since_s = now_s
            close_all(descriptors)

    def drop_queue(self) -> None:
        """Forget what is queued."""
        for _, descriptors in self.queue:
            close_all(descriptors)
        self.queue.clear()
        self.queued_bytes = 0


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors that are not handed on."""
    for fd in descriptors:
        os.close(fd)


def delivery_of(sender: Address, packet: memoryview, descriptors: tuple[int, ...]) -> Delivery:
    """What a peer's packet says. Raises ProtocolError or a MsgspecError when it is no message of ours."""
    if packet[0] != IN_MEMORY[0]:
        return Delivery(sender, decode(packet), descriptors)
    if not descriptors:
        raise ProtocolError("a message in memory came without its memory")
    message = decode(memory.read_all(descriptors[-1], at_most=MAX_MESSAGE_BYTES))
    os.close(descriptors[-1])
    return Delivery(sender, message, descriptors[:-1])


def descriptors_in(ancillary: Iterable[tuple[int, int, bytes]]) -> tuple[int, ...]:
    """The descriptors that came with a packet; they belong to the caller now."""
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
    return tuple(descriptors)
