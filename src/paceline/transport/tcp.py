"""Messages and tensors between hosts, over sockets whose ends have proved themselves (`ports.Port` and more).

Messages have a connection of their own, used by the thread that owns the port; heartbeats have one, and each direction of
tensors has some. Nothing here blocks but `receive` and `connect`; every wait has a deadline, every queue a cap.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Container, Sequence
from time import monotonic

from paceline.errors import ConfigError, PeerLostError
from paceline.messages import Address, Message
from paceline.ports import Delivery
from paceline.transport.arrivals import Arrival
from paceline.transport.attendant import Attendant
from paceline.transport.departures import Departure
from paceline.transport.dial import Endpoint, dial
from paceline.transport.forks import open_ports
from paceline.transport.handshake import MAX_LANES, Lane
from paceline.transport.peer import Peer
from paceline.transport.piece import Spec
from paceline.transport.reception import Reception
from paceline.transport.register import Register
from paceline.transport.stream import Line, give_up_after
from paceline.transport.switchboard import Switchboard
from paceline.transport.trust import Trust

STALL_S = 30.0
SILENCE_S = 10.0


class TcpPort:
    """A `ports.Port` over TCP. Its methods are for one thread, those of arrivals and departures for any.

    `incarnation` tells the lives of one address apart: each may connect once. `silence_s` without a heartbeat, or
    `stall_s` without progress of something that has begun, lose a peer. In a forked child every descriptor is closed.
    """

    def __init__(self, me: Address, trust: Trust, *, incarnation: int = 0, stall_s: float = STALL_S, silence_s: float = SILENCE_S) -> None:
        self.me = me
        self._trust = trust
        self._stall_s, self._silence_s = stall_s, silence_s
        self._register = Register(me, incarnation)
        self._attendant = Attendant(silence_s=silence_s, progress=self._progress, generation=lambda: self.generation)
        self._board = Switchboard(me, stall_s=stall_s, help_out=self._attendant.help_out, ended=self._register.forget)
        self._reached: dict[Address, tuple[Endpoint, int]] = {}
        open_ports.add(self)

    @property
    def peers(self) -> Collection[Address]:
        """Who is connected now."""
        return self._board.controls.keys()

    @property
    def refusals(self) -> Collection[str]:
        """Why the last connections were turned away, each with the host it came from."""
        return self._attendant.reception.refusals if self._attendant.reception is not None else ()

    @property
    def generation(self) -> int:
        """The newest generation of the job that this port knows; every frame and handshake states it, and it only grows."""
        return self._register.generation

    @generation.setter
    def generation(self, generation: int) -> None:
        if generation < self._register.generation:
            raise ValueError(f"generations only grow: {self._register.generation} has begun, got {generation}")
        self._register.generation = generation

    def fileno(self) -> int:
        """A descriptor that is readable when `receive` has something to do."""
        return self._board.fileno()

    def reason(self, peer: Address) -> str:
        """Why the connection of `peer` ended."""
        return self._board.reason(peer)

    def is_near(self, peer: Address) -> bool:  # noqa: ARG002
        """Whether a peer shares memory with this process: through this port nobody does."""
        return False

    def still_s(self, peer: Address) -> float:
        """For how long a peer that is connected has not gone on, whether or not it lives."""
        return monotonic() - self._peer(peer).progressed_s

    def _progress(self) -> int:
        # to wait for messages is to go on: only who does not even come back to its port stands still
        self._board.moves += self._board.is_waiting
        return self._board.moves + sum(control.peer.num_pieces for control in list(self._board.controls.values()))

    def _peer(self, address: Address) -> Peer:
        self._board.adopt()
        control = self._board.controls.get(address)
        if control is None:
            raise PeerLostError(f"{self.me} has no connection with {address}: {self.reason(address)}")
        return control.peer

    # --- connections ----------------------------------------------------------------------------------------

    def listen(self, host: str, port: int, expected: Container[Address]) -> Endpoint:
        """Take in connections of the `expected` peers; port 0 takes a free one. Raises ConfigError for a public host without a key."""
        self._trust.check(host)
        try:
            family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            listener = socket.create_server((host, port), family=family, backlog=1024)
            # a name may stand for another address by now
            self._trust.check(str(listener.getsockname()[0]))
        except OSError as error:
            # Python repeats the address behind the reason
            reason = (error.strerror or str(error)).partition(" (while")[0]
            raise ConfigError(f"{self.me} cannot listen at {Endpoint(host, port)}: {reason}") from error
        listener.setblocking(False)
        self._register.expected = expected
        self._start_attendant()
        self._attendant.listen(listener, Reception(self._trust, self._register.admit, self._take_in, self._attendant.epoll))
        return Endpoint(host, listener.getsockname()[1])

    def connect(self, peer: Address, endpoint: Endpoint, *, timeout_s: float = 10.0, lanes: int = 0) -> None:
        """Connect to a port that listens, with so many lanes for tensors each way. Raises what `dial` raises.

        A life that was let in is used up, also when a later connection of it fails: after more than "refused", come again as
        another incarnation.
        """
        if not 0 <= lanes <= MAX_LANES:
            raise ValueError(f"a peer has 0 to {MAX_LANES} lanes for tensors each way, got {lanes}")
        if peer in self.peers:
            raise ValueError(f"{self.me} is connected to {peer} already")
        lines = self._dial(peer, endpoint, [(Lane.CONTROL, 0), (Lane.PULSE, 0), *_numbered(range(lanes))], timeout_s)
        self._start_attendant()
        reached = Peer(lines[Lane.CONTROL, 0].session.peer, monotonic())
        self._put_all_to_use(reached, endpoint, lines)
        self._board.adopt()
        self._reached[peer] = (endpoint, lanes)

    def widen(self, peer: Address, *, timeout_s: float = 10.0, lanes: int) -> None:
        """Have so many lanes each way with a peer that this port has connected to, if there are fewer. Raises what `dial` raises."""
        reached, (endpoint, had) = self._peer(peer), self._reached[peer]
        lines = self._dial(peer, endpoint, _numbered(range(had, lanes)), timeout_s)
        self._reached[peer] = (endpoint, max(had, lanes))
        self._put_all_to_use(reached, endpoint, lines)

    def _dial(self, peer: Address, endpoint: Endpoint, wanted: list[tuple[Lane, int]], timeout_s: float) -> dict[tuple[Lane, int], Line]:
        deadline_s = monotonic() + timeout_s
        lines: dict[tuple[Lane, int], Line] = {}
        try:
            for lane, number in wanted:
                me = self._register.identity(lane, number)
                lines[lane, number] = dial(endpoint, me, peer, self._trust, timeout_s=deadline_s - monotonic())
        except BaseException:
            for line in lines.values():
                line.sock.close()
            raise
        return lines

    def _put_all_to_use(self, reached: Peer, endpoint: Endpoint, lines: dict[tuple[Lane, int], Line]) -> None:
        try:
            # the control lane last: with it the peer is there
            for (lane, _), line in reversed(lines.items()):
                self._put_to_use(reached, lane, line, outward=lane is Lane.UP)
        except OSError as error:
            reached.lose(f"its connection ended: {error.strerror or error}")
            raise PeerLostError(f"{self.me} cannot reach {reached.address} at {endpoint}: {reached.reason}") from error

    def _start_attendant(self) -> None:
        if self._attendant.ident is None:
            self._attendant.start()

    def _put_to_use(self, peer: Peer, lane: Lane, line: Line, *, outward: bool) -> None:
        # a peer that computes may leave its window shut for long; whether it lives, its heartbeats tell
        give_up_after(line.sock, self._silence_s if lane is Lane.PULSE else self._stall_s)
        if lane is Lane.CONTROL:
            peer.add(line.sock)
            self._attendant.watch(peer)
            self._board.offer(peer, line)
        elif lane is Lane.PULSE:
            self._attendant.pulse(peer, line)
        else:
            peer.carry(line, outward=outward, generation=lambda: self.generation, stall_s=self._stall_s)

    def _take_in(self, line: Line) -> None:
        """By the attendant's thread: a connection was admitted."""
        who = line.session.peer
        peer = self._register.find(who)
        if peer is None:
            line.sock.close()
            return
        try:
            self._put_to_use(peer, who.lane, line, outward=who.lane is Lane.DOWN)
        except OSError as error:
            # it was reset between its handshake and now
            line.sock.close()
            peer.lose(error.strerror or str(error))
            if who.lane is Lane.CONTROL:
                self._register.forget(peer)

    # --- messages and tensors -----------------------------------------------------------------------------------

    def send(self, to: Address, message: Message, attachments: Sequence[int] = ()) -> None:
        """Hand over a message, now or, when its socket is full, in a later `receive`. Never blocks.

        The receiver gets copies of the attachments, as they are when they leave.
        """
        self._board.send(to, message, self.generation, attachments)

    def receive(self, timeout_s: float) -> Delivery | None:
        """The next delivery; what was queued is sent meanwhile."""
        return self._board.receive(timeout_s)

    def expect(self, peer: Address, key: int, spec: Spec, place: memoryview) -> Arrival:
        """Name the place where tensor `key` of a peer is to land."""
        return self._peer(peer).arrivals.expect(key, spec, place)

    def start(self, to: Address, key: int, spec: Spec, data: memoryview, *, released_bytes: int | None = None) -> Departure:
        """Send a tensor that `to` expects as `key`: all of it, or what is released now and later."""
        departure = self._peer(to).departures.start(key, spec, data)
        departure.release(spec.size_bytes if released_bytes is None else released_bytes)
        return departure

    def guess(self, to: Address, key: int, spec: Spec, data: memoryview) -> Departure:
        """Begin to send a tensor that `to` expects, of which nothing is released, and what is may still change: see `Departure`."""
        return self._peer(to).departures.start(key, spec, data, is_guess=True)

    # --- ends -----------------------------------------------------------------------------------------------------

    def close(self, *, flush_s: float = 1.0) -> None:
        """Close everything, after up to `flush_s` for what is queued."""
        if self not in open_ports:
            return
        open_ports.discard(self)
        self._board.close(flush_s)
        self._attendant.end()

    def abandon(self) -> None:
        """Close the descriptors of a forked child's copy, and nothing that the parent still uses."""
        open_ports.discard(self)
        self._attendant.abandon()
        self._board.abandon()


def _numbered(numbers: range) -> list[tuple[Lane, int]]:
    """The lanes for tensors of these numbers, each way."""
    return [(lane, number) for lane in (Lane.UP, Lane.DOWN) for number in numbers]
