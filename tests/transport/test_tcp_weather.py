"""Whatever a network does to the bytes, what a port hands on is a beginning of what was sent, and every wait ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.errors import PacelineError, PeerLostError
from paceline.messages import Address, Begin
from paceline.transport.keys import read_key_file
from paceline.transport.piece import Spec
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from paceline.transport.wire import Wire
from wired import SERVER, WORKER, Between, Pair, Weather, pair, until

NUM_MESSAGES = 60
SIZE = 300_000
SPEC = Spec("uint8", (SIZE,))
SENT = bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)


@pytest.fixture(
    params=[(seed, wire) for seed in range(2 * len(Weather.KINDS)) for wire in (Wire.MAC, Wire.TLS)],
    ids=lambda p: f"{p[0]}-{p[1].name.lower()}",
)
def storm(request: pytest.FixtureRequest, key: Path) -> Iterator[tuple[Pair, Weather]]:
    """Two ports that were connected in good weather."""
    seed, wire = request.param
    with pair(Trust(read_key_file(key), wire), lanes=None, silence_s=0.8, stall_s=1.0) as ports:
        between = Between(ports.endpoint)
        ports.worker.connect(SERVER, between.endpoint, lanes=2)
        until(ports.server, lambda: WORKER in ports.server.peers)
        between.tamper = Weather(seed)
        yield ports, between.tamper
        between.close()


def send_all(port: TcpPort, to: Address) -> None:
    for number in range(NUM_MESSAGES):
        try:
            port.send(to, Begin(number))
        except PeerLostError:
            return


def receive_all(port: TcpPort) -> list[object]:
    """What came, up to the end of the peer or of what was sent."""
    arrived: list[object] = []
    while len(arrived) < NUM_MESSAGES:
        delivery = port.receive(5.0)
        assert delivery is not None, "neither a message nor an end came"
        if delivery.message is None:
            break
        arrived.append(delivery.message)
    return arrived


def test_what_arrives_is_a_beginning_of_what_was_sent(storm: tuple[Pair, Weather]) -> None:
    (server, worker, _), weather = storm
    place = bytearray(SIZE)
    arrival = server.expect(WORKER, 0, SPEC, memoryview(place))
    departure = worker.start(SERVER, 0, SPEC, memoryview(SENT))
    send_all(worker, SERVER)
    send_all(server, WORKER)
    told: list[PacelineError] = []
    for handle in (arrival, departure):
        try:
            handle.wait(5.0)
        except PeerLostError as error:
            told.append(error)
    assert place == SENT or not arrival.is_complete
    for port in (server, worker):
        arrived = receive_all(port)
        assert arrived == [Begin(number) for number in range(len(arrived))]
        if weather.kind == "fair":
            assert len(arrived) == NUM_MESSAGES
    if weather.kind == "fair":
        assert not told
        assert place == SENT
