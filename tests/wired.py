"""Two TCP ports of one job that a test connects, through a proxy if it wants; and raw sockets and frames written by hand."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import NamedTuple

from paceline.messages import Address, Message
from paceline.ports import Delivery, Port
from paceline.transport.dial import Endpoint, dial
from paceline.transport.handshake import Identity, Lane
from paceline.transport.stream import Line
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from paceline.transport.wire import FrameWriter, Kind
from proxy import FAIR, Proxy, Weather

SERVER, WORKER = Address("server", 1), Address("worker", 3)
CONTROL, PULSE, UP, DOWN = range(4)
"""The connections of a worker with one lane each way, in the order in which a proxy sees them."""


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


@contextmanager
def through(
    trust: Trust, *, lanes: int = 1, seed: int = 0, outward: Weather = FAIR, inward: Weather = FAIR, **limits: float
) -> Iterator[tuple[Pair, Proxy]]:
    """The two ports, connected through a proxy."""
    with pair(trust, lanes=None, **limits) as ports, Proxy(ports.endpoint, seed=seed, outward=outward, inward=inward) as proxy:
        ports.worker.connect(SERVER, proxy.endpoint, lanes=lanes)
        until(ports.server, lambda: WORKER in ports.server.peers)
        yield ports, proxy


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
