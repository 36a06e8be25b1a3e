"""Two TCP ports of one job that a test connects, and the hand of an attacker: raw sockets and frames written by hand."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import NamedTuple

from paceline.messages import Address, Message
from paceline.ports import Delivery, Port
from paceline.transport.dial import Endpoint, dial
from paceline.transport.handshake import Identity, Lane
from paceline.transport.stream import Line, shut
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from paceline.transport.wire import FrameWriter, Kind

SERVER, WORKER = Address("server", 1), Address("worker", 3)


class Pair(NamedTuple):
    """A server that listens, and a worker that may be connected to it."""

    server: TcpPort
    worker: TcpPort
    endpoint: Endpoint


@contextmanager
def pair(trust: Trust, *, lanes: int | None = 1, silence_s: float = 10.0, stall_s: float = 30.0) -> Iterator[Pair]:
    """The two ports; with `lanes` None they are not connected yet."""
    server = TcpPort(SERVER, trust, silence_s=silence_s, stall_s=stall_s)
    worker = TcpPort(WORKER, trust, silence_s=silence_s, stall_s=stall_s)
    try:
        endpoint = server.listen("127.0.0.1", 0, {WORKER})
        if lanes is not None:
            worker.connect(SERVER, endpoint, lanes=lanes)
            until(server, lambda: WORKER in server.peers)
        yield Pair(server, worker, endpoint)
    finally:
        worker.close(flush_s=0.0)
        server.close(flush_s=0.0)


def until(port: TcpPort, happens: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """Let a port work until something has happened; what it receives meanwhile must be nothing."""
    deadline_s = monotonic() + timeout_s
    while not happens():
        assert monotonic() < deadline_s, "it did not happen"
        assert port.receive(0.005) is None


def hear(port: Port, kind: type[Message]) -> Delivery:
    """The next delivery, which must be of this kind."""
    deadline_s = monotonic() + 10.0
    while (delivery := port.receive(0.01)) is None:
        assert monotonic() < deadline_s, f"no {kind.__name__}"
    assert isinstance(delivery.message, kind), delivery
    return delivery


def insider(endpoint: Endpoint, trust: Trust, lane: Lane, *, incarnation: int = 0, number: int = 0, generation: int = 0) -> Line:
    """A connection of somebody who holds the key, and writes what he likes."""
    return dial(endpoint, Identity(WORKER, lane, number, incarnation, generation), SERVER, trust, timeout_s=5.0)


def stranger(endpoint: Endpoint) -> socket.socket:
    """A connection of somebody who has said nothing yet."""
    sock = socket.create_connection(endpoint, 5.0)
    sock.settimeout(5.0)
    return sock


def is_closed(sock: socket.socket) -> bool:
    """Whether the other end closes without a further byte, within the socket's timeout."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def frame(writer: FrameWriter, kind: Kind, payload: bytes, generation: int = 0) -> bytes:
    """A whole frame."""
    return writer.header(kind, generation, payload) + payload


class Between:
    """Somebody on the network: passes every connection on, keeps what the connecting side says, and may change it both ways.

    `tamper` returns what is passed on; raising OSError in it ends the connection.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.said: list[bytearray] = []
        self.tamper: Callable[[bytes], bytes] = bytes
        self._behind = endpoint
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self.endpoint = Endpoint("127.0.0.1", self._listener.getsockname()[1])
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._behind)
                self._sockets += [near, far]
                self.said.append(bytearray())
                self._start(self._pass_on, near, far, self.said[-1])
                self._start(self._pass_on, far, near, None)

    def _pass_on(self, source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if kept is not None:
                    kept += data
                target.sendall(self.tamper(data))
        shut(source)
        shut(target)

    def close(self) -> None:
        """End every connection, and the threads."""
        for sock in list(self._sockets):
            shut(sock)
        for thread in list(self._threads):
            thread.join(5.0)
        for sock in self._sockets:
            sock.close()


class Weather:
    """A network that does one kind of harm, or none, to some of what passes, by a seed."""

    KINDS = ("flip", "double", "drop", "cut", "reset", "silence", "fair")

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.kind = self.KINDS[seed % len(self.KINDS)]
        self._is_silent = False

    def __call__(self, data: bytes) -> bytes:
        """What is passed on of some bytes."""
        if self._is_silent:
            return b""
        if self.kind == "fair" or self._chance.random() < 0.85:
            return data
        place = self._chance.randrange(len(data))
        if self.kind == "reset":
            raise ConnectionResetError
        if self.kind == "silence":
            self._is_silent = True
        harmed = {
            "flip": data[:place] + bytes([data[place] ^ 1 << self._chance.randrange(8)]) + data[place + 1 :],
            "double": data + data[place:],
            "drop": data[:place],
            "cut": data[:place] + data[place + 1 :],
        }
        return harmed.get(self.kind, b"")
