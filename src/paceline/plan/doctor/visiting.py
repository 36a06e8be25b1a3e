"""One host measures another: which of its addresses are reached, how long an answer takes, what connections bring there."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from time import perf_counter

from paceline.errors import DeadlineError, PacelineError
from paceline.messages import Address, Linked
from paceline.plan.doctor.doors import BYTES, NUM_EACH, SIZES, TIME, hello, tensors
from paceline.plan.doctor.findings import Door, Visit, Way
from paceline.plan.speed import Clock, ask, send
from paceline.transport.dial import Endpoint
from paceline.transport.stream import hurry
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust

REACH_S = 3.0
"""How long an address may take to answer."""
WIRE_S = 5.0
NUM_PINGS, PINGS_S = 40, 0.05
AIM_S = 0.04
"""About how long the tensors of one measurement are to take."""

_SPECS = dict(tensors())


class Visitor:
    """The process of rank `rank`, on its way through the doors of other hosts."""

    def __init__(self, rank: int, trust: Trust, clock: Clock) -> None:
        self._rank, self._trust, self._clock = rank, trust, clock
        # every connection is a worker of its own, since a port takes each in once
        self._numbers = count(rank << 12)

    def visit(self, host: int, doors: Sequence[Door], advertised: str) -> Visit:
        """Measure the way to the host whose first rank is `host`, each of its doors and the advertised one more closely."""
        with ThreadPoolExecutor(max(1, len(doors))) as pool:
            errors = list(pool.map(lambda door: self._reach(host, door), doors))
        ways = [
            Way(door.interface, door.address, error) if error else self._measure(door) for door, error in zip(doors, errors, strict=True)
        ]
        reached = [(way.address == advertised, way.bytes_per_s, door) for way, door in zip(ways, doors, strict=True) if not way.error]
        if not reached:
            return Visit(self._rank, host, tuple(ways), error="" if doors else "it has opened no port")
        best = max(reached, key=lambda one: one[:2])
        return self._closely(host, best[2], best[1], tuple(ways))

    def _closely(self, host: int, door: Door, bytes_per_s: float, ways: tuple[Way, ...]) -> Visit:
        try:
            two = self._bring(door, 2)
            wire, wire_two = (self._over_wire(host, door, lanes, bytes_per_s) for lanes in (1, 2))
        except (OSError, PacelineError) as error:
            return Visit(self._rank, host, ways, door.address, error=str(error))
        return Visit(self._rank, host, ways, door.address, two, wire, wire_two)

    def _port(self) -> TcpPort:
        return TcpPort(Address("worker", next(self._numbers)), self._trust)

    def _reach(self, host: int, door: Door) -> str:
        """Shake hands as a job would; returns why that did not work."""
        port = self._port()
        try:
            port.connect(Address("server", host), Endpoint(door.address, door.wire_port), timeout_s=REACH_S)
        except PacelineError as error:
            return str(error).partition(": ")[2] or str(error)
        finally:
            port.close(flush_s=0.0)
        return ""

    def _measure(self, door: Door) -> Way:
        try:
            with self._plainly(door, TIME) as end:
                answer = ask(end, num_pings=NUM_PINGS, limit_s=PINGS_S, clock=self._clock)
            rate = self._bring(door, 1)
        except (OSError, DeadlineError) as error:
            return Way(door.interface, door.address, f"it was reached, but then: {error}")
        return Way(door.interface, door.address, "", answer.round_trip_s, answer.ahead_s, answer.ahead_error_s, rate)

    def _plainly(self, door: Door, wish: bytes) -> socket.socket:
        end = socket.create_connection((door.address, door.plain_port), REACH_S)
        hurry(end)
        end.sendall(hello(self._trust, wish, door.address, door.plain_port))
        return end

    def _bring(self, door: Door, num_connections: int) -> float:
        """Bytes a second of so many plain connections at once."""

        def one(end: socket.socket) -> float:
            with end:
                rate = send(end)
                with suppress(OSError):
                    # what is still on its way would be in the way of the next measurement
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return rate

        ends = [self._plainly(door, BYTES) for _ in range(num_connections)]
        with ThreadPoolExecutor(num_connections) as pool:
            return sum(pool.map(one, ends))

    def _over_wire(self, host: int, door: Door, lanes: int, bytes_per_s: float) -> float:
        """Bytes a second of tensors as a job sends them; the first of a size warms the connection up."""
        port, peer = self._port(), Address("server", host)
        place = max((place for place, size in enumerate(SIZES) if size * NUM_EACH <= AIM_S * bytes_per_s), default=0)
        first, *rest = range(NUM_EACH * place, NUM_EACH * (place + 1))
        data = memoryview(bytes(SIZES[place]))
        try:
            port.connect(peer, Endpoint(door.address, door.wire_port), timeout_s=REACH_S, lanes=lanes)
            delivery = port.receive(WIRE_S)
            if delivery is None or not isinstance(delivery.message, Linked):
                raise DeadlineError(f"{peer} at {door.address} let a connection in, and then said nothing for {WIRE_S:g} s")
            port.start(peer, first, _SPECS[first], data).wait(WIRE_S)
            begun_s = perf_counter()
            for departure in [port.start(peer, key, _SPECS[key], data) for key in rest]:
                departure.wait(WIRE_S)
            return len(rest) * len(data) / (perf_counter() - begun_s)
        finally:
            port.close(flush_s=0.0)
