"""A port through a bad network: the same bits, or the end of the peer with its name, and every wait within its deadline."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from paceline.errors import DeadlineError, PacelineError, PeerLostError, ProtocolError
from paceline.messages import Begin, Failed
from paceline.ports import Delivery
from paceline.transport.arrivals import Arrival
from paceline.transport.departures import Departure
from paceline.transport.keys import read_key_file
from paceline.transport.piece import Spec
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from paceline.transport.wire import Wire
from proxy import FAIR, HARMS, Harm, Proxy, Weather
from wired import CONTROL, DOWN, PULSE, SERVER, UP, WORKER, Pair, hear, pair, through

SIZE = 20_000
SPEC = Spec("uint8", (SIZE,))
SENT = random.Random(0).randbytes(SIZE)
SILENCE_S = 0.4
CONNECT_S = 0.2
SLACK_S = 2.0
"""What a loaded machine may take to tell what it has noticed."""


@pytest.fixture(params=Wire, ids=lambda wire: wire.name.lower())
def trust(request: pytest.FixtureRequest, key: Path) -> Trust:
    return Trust() if request.param is Wire.PLAIN else Trust(read_key_file(key), request.param)


class Transfers:
    """A tensor on its way in each direction: `pushed` to the server, `pulled` by the worker."""

    def __init__(self, ports: Pair, key: int = 0) -> None:
        self.pushed, self.pulled = bytearray(SIZE), bytearray(SIZE)
        self.push: tuple[Arrival, Departure] = (
            ports.server.expect(WORKER, key, SPEC, memoryview(self.pushed)),
            ports.worker.start(SERVER, key, SPEC, memoryview(SENT)),
        )
        self.pull: tuple[Arrival, Departure] = (
            ports.worker.expect(SERVER, key, SPEC, memoryview(self.pulled)),
            ports.server.start(WORKER, key, SPEC, memoryview(SENT)),
        )

    def wait(self) -> None:
        """Until both are there."""
        for end in (*self.push, *self.pull):
            end.wait(10.0)


@contextmanager
def told_within(limit_s: float) -> Iterator[None]:
    began_s = monotonic()
    yield
    assert monotonic() - began_s < limit_s + SLACK_S


def exchange(ports: Pair, key: int = 0) -> None:
    """Tensors and messages both ways arrive bit by bit."""
    transfers = Transfers(ports, key)
    for number in range(20):
        ports.worker.send(SERVER, Begin(number))
        ports.server.send(WORKER, Begin(number))
    for port in (ports.server, ports.worker):
        assert [hear(port, Begin).message for _ in range(20)] == [Begin(number) for number in range(20)]
    transfers.wait()
    assert transfers.pushed == transfers.pulled == SENT


def both_are_told(ports: Pair) -> tuple[str, str]:
    """Each port hears of the other's end, once; returns the server's and the worker's reason."""
    left = {ports.server: WORKER, ports.worker: SERVER}
    deadline_s = monotonic() + 5.0
    while left:
        assert monotonic() < deadline_s, f"no end came of {left.values()}"
        for port in list(left):
            delivery = port.receive(0.01)
            if delivery is not None and delivery.message is None:
                assert delivery == Delivery(left.pop(port), None)
                assert port.receive(0.0) is None
                assert not port.peers
    return ports.server.reason(WORKER), ports.worker.reason(SERVER)


# --- what only takes time -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weather",
    [Weather(latency_s=0.005, jitter_s=0.01), Weather(slice_bytes=1), Weather(0.002, 0.004, bytes_per_s=400_000.0, slice_bytes=700)],
    ids=["jitter", "single-bytes", "narrow"],
)
def test_a_link_that_is_only_slow_changes_no_bit(trust: Trust, weather: Weather) -> None:
    with through(trust, outward=weather, inward=weather) as (ports, _):
        exchange(ports)
        exchange(ports, key=1)


def test_the_worse_direction_of_a_link_slows_the_other_down_by_nothing(trust: Trust) -> None:
    with through(trust) as (ports, proxy):
        proxy.outward = Weather(latency_s=0.5)
        transfers = Transfers(ports)
        began_s = monotonic()
        transfers.pull[0].wait(5.0)
        assert not transfers.push[0].is_complete
        transfers.wait()
        assert monotonic() - began_s >= 0.5


# --- bytes that change --------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["flip", "double", "drop"])
@pytest.mark.parametrize("lane", [CONTROL, PULSE, UP, DOWN], ids=["control", "pulse", "up", "down"])
def test_what_was_changed_on_the_way_is_never_used_and_both_are_told(trust: Trust, lane: int, harm: Harm) -> None:
    chance = random.Random(f"{lane} {harm}")
    with through(trust, silence_s=SILENCE_S, stall_s=0.5) as (ports, proxy):
        proxy.spoiled = {lane}
        harmed = Weather(harm=harm, first=chance.randrange(60 if lane == PULSE else 200))
        inward = lane == DOWN or (lane in (CONTROL, PULSE) and chance.random() < 0.5)
        proxy.outward, proxy.inward = (Weather(), harmed) if inward else (harmed, Weather())
        transfers = Transfers(ports) if lane in (UP, DOWN) else None
        for port, to in ((ports.worker, SERVER), (ports.server, WORKER)):
            if lane == CONTROL:
                # a length that TLS believes is made up by what follows
                port.send(to, Failed(1, "first"))
                port.send(to, Failed(1, "x" * SIZE))
        with told_within(SILENCE_S + 0.5):
            reasons = both_are_told(ports)
        assert all(reasons)
        if transfers is not None:
            arrival, departure = transfers.pull if inward else transfers.push
            assert not arrival.is_complete
            with pytest.raises(PeerLostError, match=f"tensor 0 will not come from {'server 1' if inward else 'worker 3'}"):
                arrival.wait(0.0)
            with pytest.raises(PeerLostError, match=f"tensor 0 did not reach {'worker 3' if inward else 'server 1'}"):
                departure.wait(0.0)


def test_no_bit_of_a_tensors_way_can_be_flipped_unnoticed(key: Path) -> None:
    """Without a MAC, xxh3 stands alone: a flip in each field of both headers, in the place and in the data."""
    for first in (*range(0, 64, 7), *range(64, 144, 9), *range(144, 208, 7), 208, 10_000, 64 + 80 + 64 + SIZE - 1):
        with through(Trust(), stall_s=0.5) as (ports, proxy):
            proxy.spoiled, proxy.outward = {UP}, Weather(harm="flip", first=first)
            transfers = Transfers(ports)
            with pytest.raises(PeerLostError, match="worker 3"):
                transfers.push[0].wait(5.0)
            assert not transfers.push[0].is_complete


# --- connections that end, or only seem to live -------------------------------------------------------------


@pytest.mark.parametrize("ways", ["both", "outward", "inward"])
def test_a_hole_is_noticed_within_the_silence_in_mid_tensor(trust: Trust, ways: str) -> None:
    with through(trust, silence_s=SILENCE_S) as (ports, proxy):
        hole, slow = Weather(hole=True), Weather(bytes_per_s=2000.0, slice_bytes=100)
        proxy.outward = proxy.inward = slow
        transfers = Transfers(ports)
        while not transfers.push[0].num_writing:
            assert ports.server.receive(0.001) is None
        proxy.outward = slow if ways == "inward" else hole
        proxy.inward = slow if ways == "outward" else hole
        with told_within(SILENCE_S):
            reasons = both_are_told(ports)
        assert f"nothing was heard of it for {SILENCE_S:g} s" in reasons
        for end, other in ((transfers.push[0], "worker 3"), (transfers.pull[0], "server 1")):
            assert not end.is_complete
            with pytest.raises(PeerLostError, match=f"will not come from {other}"):
                end.wait(0.0)


def test_a_tensors_own_connection_that_is_a_hole_passes_the_deadline_of_whoever_waits(trust: Trust) -> None:
    with through(trust, silence_s=SILENCE_S) as (ports, proxy):
        proxy.spoiled, proxy.outward = {UP}, Weather(hole=True)
        transfers = Transfers(ports)
        transfers.pull[0].wait(5.0)
        with pytest.raises(DeadlineError, match=r"tensor 0 of worker 3 was not there after 0.3 s \(0 of 1 pieces were\)"):
            transfers.push[0].wait(0.3)
        with pytest.raises(DeadlineError, match=r"server 1 did not have tensor 0 after 0.3 s"):
            transfers.push[1].wait(0.3)
        ports.worker.send(SERVER, Begin(1))
        hear(ports.server, Begin)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("harm", ["reset", "cut"])
def test_one_connection_that_ends_in_mid_tensor_ends_the_peer_whose_next_life_comes_in(trust: Trust, harm: Harm, lanes: int) -> None:
    with through(trust, lanes=lanes, silence_s=SILENCE_S) as (ports, proxy):
        # whichever of its lanes takes the tensor
        proxy.spoiled, proxy.outward = set(range(UP, UP + lanes)), Weather(harm=harm, first=SIZE // 2)
        transfers = Transfers(ports)
        with told_within(SILENCE_S):
            for end in transfers.push:
                with pytest.raises(PeerLostError, match=r"tensor 0 (will not come from worker 3|did not reach server 1)"):
                    end.wait(5.0)
            both_are_told(ports)
        proxy.outward = FAIR
        again = TcpPort(WORKER, trust, incarnation=1)
        try:
            again.connect(SERVER, proxy.endpoint, lanes=1)
            hear_of(ports.server)
            exchange(Pair(ports.server, again, ports.endpoint))
        finally:
            again.close(flush_s=0.0)


def hear_of(server: TcpPort) -> None:
    """Until the worker is there."""
    deadline_s = monotonic() + 5.0
    while WORKER not in server.peers:
        assert monotonic() < deadline_s
        assert server.receive(0.005) is None


def test_a_reset_of_all_connections_is_told_at_once(trust: Trust) -> None:
    with through(trust) as (ports, proxy):
        proxy.outward = Weather(bytes_per_s=50_000.0, slice_bytes=1000)
        transfers = Transfers(ports)
        proxy.reset()
        with told_within(0.0):
            assert all(both_are_told(ports))
        with pytest.raises(PeerLostError, match="worker 3"):
            transfers.push[0].wait(0.0)


# --- while they connect -------------------------------------------------------------------------------------


def spoiled_handshake(trust: Trust, outward: Weather, inward: Weather = FAIR) -> PacelineError:
    """The error of a connection that is made in this weather."""
    with pair(trust, lanes=None) as ports, Proxy(ports.endpoint, outward=outward, inward=inward) as proxy:
        where = f"worker 3 cannot reach server 1 at {proxy.endpoint}: "
        with told_within(CONNECT_S), pytest.raises((PeerLostError, ProtocolError), match=f"^{where}") as told:
            ports.worker.connect(SERVER, proxy.endpoint, timeout_s=CONNECT_S)
        assert not ports.worker.peers
        assert ports.server.receive(0.0) is None
        return told.value


@pytest.mark.parametrize("ways", ["outward", "inward"])
def test_a_handshake_in_a_hole_has_a_deadline(trust: Trust, ways: str) -> None:
    error = spoiled_handshake(trust, *((FAIR, Weather(hole=True)) if ways == "inward" else (Weather(hole=True),)))
    assert str(error).endswith("no answer within 0.2 s")


@pytest.mark.parametrize("harm", HARMS)
def test_a_handshake_that_is_harmed_fails_with_an_error_of_ours(trust: Trust, harm: Harm) -> None:
    for first in random.Random(harm).sample(range(90), 2):
        harmed = Weather(harm=harm, first=first)
        spoiled_handshake(trust, *((FAIR, harmed) if first % 2 else (harmed,)))
