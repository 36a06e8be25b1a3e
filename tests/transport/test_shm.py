"""What only sockets can do wrong: strangers, bad packets, forks, and a peer that dies."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from secrets import token_hex

import msgspec
import pytest

from paceline.errors import PeerLostError, ProtocolError
from paceline.messages import COORDINATOR, Address, Begin, encode
from paceline.ports import Delivery
from paceline.transport import connection
from paceline.transport.connection import listener_at, pair
from paceline.transport.shm import SocketPort

WORKER = Address("worker", 0)
NAME = f"paceline-test-{token_hex(8)}"


@pytest.fixture
def coordinator() -> Iterator[SocketPort]:
    port = SocketPort(COORDINATOR)
    port.listen(listener_at(NAME), {WORKER})
    yield port
    port.close(flush_s=0.0)


def _raw() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(5.0)
    sock.connect(b"\0" + NAME.encode())
    return sock


def _is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(10) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "packet",
    [
        b"hello",
        encode(Begin(0)),
        msgspec.msgpack.encode(("paceline 0", "worker", 0)),
        msgspec.msgpack.encode(("paceline 1", "worker", 1)),
        msgspec.msgpack.encode(("paceline 1", "supervisor", 0)),
        b"x" * 100_000,
    ],
    ids=["text", "message", "version", "number", "role", "size"],
)
def test_a_first_packet_that_is_no_expected_greeting_ends_the_connection(coordinator: SocketPort, packet: bytes) -> None:
    sock = _raw()
    sock.send(packet)
    assert coordinator.receive(0.05) is None
    assert _is_closed(sock)
    assert not coordinator.peers


def test_a_second_connection_of_one_peer_is_closed(coordinator: SocketPort) -> None:
    first, second = SocketPort(WORKER), _raw()
    first.connect(COORDINATOR, NAME)
    coordinator.receive(0.05)
    second.send(msgspec.msgpack.encode(("paceline 1", "worker", 0)))
    coordinator.receive(0.05)
    assert _is_closed(second)
    first.send(COORDINATOR, Begin(5))
    assert coordinator.receive(5.0) == Delivery(WORKER, Begin(5))
    first.close()


def test_another_user_is_turned_away(coordinator: SocketPort, monkeypatch: pytest.MonkeyPatch) -> None:
    sock = _raw()
    monkeypatch.setattr(connection.os, "getuid", lambda: 12345)
    coordinator.receive(0.05)
    assert _is_closed(sock)
    with pytest.raises(ProtocolError, match="12345"):
        SocketPort(WORKER).connect(COORDINATOR, NAME)


def test_many_strangers_do_not_fill_the_port(coordinator: SocketPort) -> None:
    strangers = [_raw() for _ in range(80)]
    coordinator.receive(0.05)
    assert _is_closed(strangers[0])
    worker = SocketPort(WORKER)
    worker.connect(COORDINATOR, NAME)
    worker.send(COORDINATOR, Begin(1))
    assert coordinator.receive(5.0) == Delivery(WORKER, Begin(1))
    worker.close()
    for sock in strangers:
        sock.close()


def test_a_packet_that_is_no_message_ends_a_known_peer_and_says_why(coordinator: SocketPort) -> None:
    sock = _raw()
    sock.send(msgspec.msgpack.encode(("paceline 1", "worker", 0)))
    sock.send(b"\xc1")
    assert coordinator.receive(5.0) == Delivery(WORKER, None)
    assert "no message of ours" in coordinator.reason(WORKER)


def test_nobody_listening_is_said_with_names() -> None:
    with pytest.raises(PeerLostError, match="worker 0 cannot reach coordinator"):
        SocketPort(WORKER).connect(COORDINATOR, "paceline-nobody")


def test_a_peer_that_stops_reading_is_lost_after_a_while() -> None:
    ours, theirs = pair()
    port = SocketPort(COORDINATOR, stall_s=0.05)
    port.adopt(WORKER, ours)
    for epoch in range(2000):
        port.send(WORKER, Begin(epoch))
    assert port.receive(5.0) == Delivery(WORKER, None)
    assert "has not read its messages for 0.05 s" in port.reason(WORKER)
    port.close()
    theirs.close()


def test_a_forked_child_keeps_no_connection_open(forked_child: Callable[[], AbstractContextManager[None]]) -> None:
    ours, theirs = pair()
    port, other = SocketPort(COORDINATOR), SocketPort(WORKER)
    port.adopt(WORKER, ours)
    other.adopt(COORDINATOR, theirs)
    with closing(other), forked_child():
        port.send(WORKER, Begin(1))
        port.close()
        assert other.receive(5.0) == Delivery(COORDINATOR, Begin(1))
        assert other.receive(5.0) == Delivery(COORDINATOR, None)
