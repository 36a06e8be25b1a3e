"""Whatever a network does to the bytes, what a port hands on is a beginning of what was sent, and every wait ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from paceline.errors import PacelineError, PeerLostError
from paceline.messages import Address, Begin
from paceline.transport.keys import read_key_file
from paceline.transport.piece import Spec
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from paceline.transport.wire import Wire
from proxy import FAIR, HARMS, Weather
from wired import SERVER, WORKER, Pair, through

NUM_MESSAGES = 60
SIZE = 300_000
SPEC = Spec("uint8", (SIZE,))
SENT = bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)
WEATHERS = (FAIR, Weather(hole=True), *(Weather(harm=harm, every_bytes=2500) for harm in HARMS if harm != "hole"))


def some(seeds: int) -> list[object]:
    """Every seed on every wire; those that come again to a weather are for the long tests."""
    marks = {seed: pytest.mark.slow if seed >= len(WEATHERS) else () for seed in range(seeds)}
    return [pytest.param((seed, wire), marks=marks[seed], id=f"{seed}-{wire.name.lower()}") for seed, wire in product(marks, Wire)]


@pytest.fixture(params=some(5 * len(WEATHERS)))
def storm(request: pytest.FixtureRequest, key: Path) -> Iterator[tuple[Pair, Weather]]:
    """Two ports that were connected in good weather."""
    seed, wire = request.param
    trust = Trust() if wire is Wire.PLAIN else Trust(read_key_file(key), wire)
    with through(trust, lanes=2, seed=seed, silence_s=0.6, stall_s=0.8) as (ports, proxy):
        proxy.outward = proxy.inward = WEATHERS[seed % len(WEATHERS)]
        yield ports, proxy.outward


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
        if weather is FAIR:
            assert len(arrived) == NUM_MESSAGES
    assert bool(told) == (weather is not FAIR)
    assert (place == SENT) == (weather is FAIR)
