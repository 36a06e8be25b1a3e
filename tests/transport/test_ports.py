"""One contract for every port: the in-process fake and the sockets pass the same tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from secrets import token_hex

import pytest

from paceline.errors import PeerLostError
from paceline.messages import COORDINATOR, Address, Begin, Failed, Log, Params, Pull
from paceline.ports import Delivery, Port
from paceline.transport import memory
from paceline.transport.connection import listener_at
from paceline.transport.faulty import Faults, FaultyExchange
from paceline.transport.inproc import Exchange
from paceline.transport.keys import read_key_file
from paceline.transport.shm import SocketPort
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from paceline.transport.wire import Wire

WORKER = Address("worker", 3)
Opened = tuple[Port, Port]
Again = Callable[[], Port]


def _inproc(stack: ExitStack, _: Path) -> tuple[Opened, Again]:
    return _within(stack, Exchange())


def _delayed(stack: ExitStack, _: Path) -> tuple[Opened, Again]:
    return _within(stack, FaultyExchange(1, Faults(delay_s=0.001, jitter_s=0.002)))


def _within(stack: ExitStack, exchange: Exchange) -> tuple[Opened, Again]:
    coordinator, worker = exchange.port(COORDINATOR), exchange.port(WORKER)
    stack.callback(coordinator.close)
    stack.callback(worker.close)
    return (coordinator, worker), lambda: exchange.port(WORKER)


def _sockets(stack: ExitStack, _: Path) -> tuple[Opened, Again]:
    name = f"paceline-test-{token_hex(8)}"
    coordinator, worker = SocketPort(COORDINATOR), SocketPort(WORKER)
    stack.callback(lambda: coordinator.close(flush_s=0.0))
    stack.callback(lambda: worker.close(flush_s=0.0))
    coordinator.listen(listener_at(name), {WORKER})
    worker.connect(COORDINATOR, name)
    while WORKER not in coordinator.peers:
        assert coordinator.receive(0.0) is None

    def again() -> Port:
        port = SocketPort(WORKER)
        stack.callback(lambda: port.close(flush_s=0.0))
        port.connect(COORDINATOR, name)
        return port

    return (coordinator, worker), again


def _tcp(stack: ExitStack, trust: Trust) -> tuple[Opened, Again]:
    lives = count()

    def port(me: Address) -> TcpPort:
        made = TcpPort(me, trust, incarnation=next(lives))
        stack.callback(lambda: made.close(flush_s=0.0))
        return made

    coordinator = port(COORDINATOR)
    endpoint = coordinator.listen("127.0.0.1", 0, {WORKER})

    def again() -> TcpPort:
        worker = port(WORKER)
        worker.connect(COORDINATOR, endpoint)
        return worker

    worker = again()
    while WORKER not in coordinator.peers:
        assert coordinator.receive(0.0) is None
    return (coordinator, worker), again


def _plain(stack: ExitStack, _: Path) -> tuple[Opened, Again]:
    return _tcp(stack, Trust())


def _mac(stack: ExitStack, key: Path) -> tuple[Opened, Again]:
    return _tcp(stack, Trust(read_key_file(key), Wire.MAC))


def _tls(stack: ExitStack, key: Path) -> tuple[Opened, Again]:
    return _tcp(stack, Trust(read_key_file(key), Wire.TLS))


@pytest.fixture(params=[_inproc, _delayed, _sockets, _plain, _mac, _tls], ids=lambda make: make.__name__.lstrip("_"))
def opened(request: pytest.FixtureRequest, key: Path) -> Iterator[tuple[Opened, Again]]:
    make: Callable[[ExitStack, Path], tuple[Opened, Again]] = request.param
    with ExitStack() as stack:
        yield make(stack, key)


@pytest.fixture
def ports(opened: tuple[Opened, Again]) -> Opened:
    """The coordinator's port and a worker's, connected."""
    return opened[0]


@pytest.fixture
def again(opened: tuple[Opened, Again]) -> Again:
    """Makes the worker's next port, after it was closed."""
    return opened[1]


def _next(port: Port) -> Delivery:
    delivery = port.receive(5.0)
    assert delivery is not None
    return delivery


def test_a_message_arrives_whole_with_its_sender(ports: Opened) -> None:
    coordinator, worker = ports
    worker.send(COORDINATOR, Log({"loss": 0.5}, 2, 32))
    assert _next(coordinator) == Delivery(WORKER, Log({"loss": 0.5}, 2, 32), ())


def test_messages_of_one_peer_keep_their_order(ports: Opened) -> None:
    coordinator, worker = ports
    for epoch in range(200):
        worker.send(COORDINATOR, Begin(epoch))
    assert [_next(coordinator).message for _ in range(200)] == [Begin(epoch) for epoch in range(200)]


def test_nothing_there_is_none_after_the_timeout(ports: Opened) -> None:
    assert ports[0].receive(0.0) is None
    assert ports[0].receive(0.01) is None


def test_large_and_small_messages_keep_their_order(ports: Opened) -> None:
    coordinator, worker = ports
    sent = [Failed(1, "small"), Failed(1, "large", "x" * 3_000_000), Failed(1, "edge", "y" * 65_520), Failed(2, "small")]
    for message in sent:
        worker.send(COORDINATOR, message)
    assert [_next(coordinator).message for _ in sent] == sent


def test_attachments_are_the_receivers_own(ports: Opened) -> None:
    coordinator, worker = ports
    fd = memory.create("arena", 100)
    worker.send(COORDINATOR, Failed(0, "big", "x" * 100_000), (fd, fd))
    os.close(fd)
    delivery = _next(coordinator)
    assert delivery.message == Failed(0, "big", "x" * 100_000)
    first, second = delivery.attachments
    memory.map_shared(first)[:5] = b"hello"
    assert memory.map_shared(second)[:5] == b"hello"
    os.close(first)
    os.close(second)


def test_too_many_attachments_are_refused(ports: Opened) -> None:
    fd = memory.create("arena", 1)
    with pytest.raises(ValueError, match="at most 4 attachments, got 5"):
        ports[1].send(COORDINATOR, Begin(0), [fd] * 5)
    os.close(fd)


def test_the_end_of_a_connection_is_told_once_after_what_was_sent(ports: Opened) -> None:
    coordinator, worker = ports
    coordinator.send(WORKER, Params(1))
    worker.send(COORDINATOR, Begin(0))
    worker.send(COORDINATOR, Begin(1))
    worker.close()
    assert [_next(coordinator).message for _ in range(3)] == [Begin(0), Begin(1), None]
    assert coordinator.receive(0.0) is None


def test_sending_to_one_who_is_gone_names_it(ports: Opened) -> None:
    coordinator, worker = ports
    worker.close()
    with pytest.raises(PeerLostError, match="worker 3"):
        coordinator.send(WORKER, Params(1))
    assert _next(coordinator) == Delivery(WORKER, None)
    with pytest.raises(PeerLostError, match="worker 3"):
        coordinator.send(WORKER, Params(1))


def test_sending_to_one_who_never_was_names_it(ports: Opened) -> None:
    with pytest.raises(PeerLostError, match="server 7"):
        ports[0].send(Address("server", 7), Pull(0, copy=False, taken=-1))


def test_one_who_never_reads_is_lost_and_blocks_nobody(ports: Opened) -> None:
    coordinator, _ = ports

    def flood() -> None:
        for step in range(100_000):
            coordinator.send(WORKER, Params(step))

    with pytest.raises(PeerLostError, match="worker 3"):
        flood()
    assert _next(coordinator) == Delivery(WORKER, None)
    assert coordinator.receive(0.0) is None


def test_a_queue_that_is_read_late_arrives_in_order(ports: Opened) -> None:
    coordinator, worker = ports
    for step in range(3000):
        coordinator.send(WORKER, Params(step))
    arrived: list[object] = []
    while len(arrived) < 3000:
        assert coordinator.receive(0.0) is None
        delivery = worker.receive(0.0)
        if delivery is not None:
            arrived.append(delivery.message)
    assert arrived == [Params(step) for step in range(3000)]


def test_one_who_comes_back_is_heard_again(ports: Opened, again: Callable[[], Port]) -> None:
    coordinator, worker = ports
    worker.close()
    assert _next(coordinator).message is None
    returned = again()
    returned.send(COORDINATOR, Begin(7))
    assert _next(coordinator) == Delivery(WORKER, Begin(7))
    coordinator.send(WORKER, Params(1))
    assert _next(returned).message == Params(1)
