"""What a host opens for the others during a checkup: at each of its addresses a port as a job's, and a plain socket.

Who comes to the plain one says with the job's key what it wants, and only zeros and the time are sent there.
"""

from __future__ import annotations

import hmac
import select
import socket
import threading
from collections.abc import Collection
from contextlib import suppress

from paceline.engine.torchrun.interfaces import Interface
from paceline.errors import DeadlineError, PacelineError
from paceline.messages import Address, Linked
from paceline.plan.doctor.findings import Door
from paceline.plan.speed import PATIENCE_S, Clock, receive, reply, take
from paceline.transport.piece import Spec
from paceline.transport.stream import hurry, shut
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust

SIZES = tuple(1 << power for power in (16, 18, 20, 22, 24))
"""Bytes of the tensors that may come over the wire, so that a slow and a fast network can both be measured in a moment."""
NUM_EACH = 6
SPAN_S = 0.05
TIME, BYTES = b"time", b"byte"
HELLO_BYTES = 4 + 32
_TICK_S = 0.2
_MOST_GUESTS = 256
_BACKLOG = 64


def tensors() -> Collection[tuple[int, Spec]]:
    """The key and the shape of every tensor that a visitor may send."""
    return [(NUM_EACH * place + number, Spec("uint8", (size,))) for place, size in enumerate(SIZES) for number in range(NUM_EACH)]


def hello(trust: Trust, wish: bytes, address: str, port: int) -> bytes:
    """What a visitor says at a plain door: that it has the key, and whether it wants the TIME or to bring BYTES."""
    return wish + hmac.digest(trust.secret, b"paceline doctor\0" + wish + f"{address}\0{port}".encode(), "sha256")


class _Guests:
    """Every worker of the checkup, whatever its number."""

    def __contains__(self, address: object) -> bool:
        return isinstance(address, Address) and address.role == "worker"


class Doors:
    """The open doors of the host whose first rank is `rank`, served by a thread until `close`. `errors` say which could not be opened.

    They are at `first_port` and the next one of each address; 0: at any that are free.
    """

    def __init__(self, rank: int, addresses: Collection[Interface], trust: Trust, clock: Clock, *, first_port: int = 0) -> None:
        self.doors: list[Door] = []
        self.errors: list[str] = []
        self._trust, self._clock = trust, clock
        self._ports: list[TcpPort] = []
        self._plain: dict[int, tuple[socket.socket, Door]] = {}
        self._known: dict[TcpPort, set[Address]] = {}
        self._place = memoryview(bytearray(SIZES[-1]))
        self._is_over = threading.Event()
        self._guests: list[tuple[threading.Thread, socket.socket]] = []
        for one in addresses:
            self._open(Address("server", rank), one, first_port)
        self._thread = threading.Thread(target=self._serve, name="paceline doors", daemon=True)
        self._thread.start()

    def _open(self, me: Address, at: Interface, first_port: int) -> None:
        port = TcpPort(me, self._trust)
        try:
            endpoint = port.listen(at.address, first_port, _Guests())
            family = socket.AF_INET6 if ":" in at.address else socket.AF_INET
            plain = socket.create_server((at.address, first_port and first_port + 1), family=family, backlog=_BACKLOG)
        except (PacelineError, OSError) as error:
            port.close(flush_s=0.0)
            self.errors.append(str(error))
            return
        plain.setblocking(False)
        door = Door(at.name, at.address, endpoint.port, plain.getsockname()[1])
        self.doors.append(door)
        self._ports.append(port)
        self._known[port] = set()
        self._plain[plain.fileno()] = (plain, door)

    def close(self) -> None:
        """Shut them, see everybody out, and end the thread."""
        self._is_over.set()
        self._thread.join(PATIENCE_S)
        for thread, guest in self._guests:
            shut(guest)
            thread.join(PATIENCE_S)
        for port in self._ports:
            port.close(flush_s=0.0)
        for plain, _ in self._plain.values():
            plain.close()

    # --- the thread ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
        poll = select.poll()
        for port in self._ports:
            poll.register(port.fileno(), select.POLLIN)
        for fd in self._plain:
            poll.register(fd, select.POLLIN)
        while not self._is_over.is_set():
            for fd, _ in poll.poll(1000.0 * _TICK_S):
                if fd in self._plain:
                    self._let_in(*self._plain[fd])
            for port in self._ports:
                self._welcome(port)

    def _welcome(self, port: TcpPort) -> None:
        """Expect the tensors of whoever is new, and say so."""
        while port.receive(0.0) is not None:
            pass
        for guest in set(port.peers) - self._known[port]:
            with suppress(PacelineError):
                for key, spec in tensors():
                    port.expect(guest, key, spec, self._place[: spec.size_bytes])
                port.send(guest, Linked())
        self._known[port] = set(port.peers)

    def _let_in(self, listener: socket.socket, door: Door) -> None:
        with suppress(OSError):
            guest, _ = listener.accept()
            self._guests = [one for one in self._guests if one[0].is_alive()]
            if len(self._guests) >= _MOST_GUESTS:
                guest.close()
                return
            thread = threading.Thread(target=self._entertain, args=(guest, door), name="paceline guest", daemon=True)
            self._guests.append((thread, guest))
            thread.start()

    def _entertain(self, guest: socket.socket, door: Door) -> None:
        with guest, suppress(OSError, DeadlineError):
            guest.settimeout(PATIENCE_S)
            hurry(guest)
            said = take(guest, HELLO_BYTES)
            wish = said[:4]
            if wish not in (TIME, BYTES) or not hmac.compare_digest(said, hello(self._trust, wish, door.address, door.plain_port)):
                return
            if wish == TIME:
                reply(guest, clock=self._clock)
            else:
                receive(guest, SPAN_S)
