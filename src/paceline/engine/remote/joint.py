"""Two ports as one: Unix sockets to the processes of this run on this machine, TCP to everyone else.

Whoever is reached over a Unix socket shares memory with this process; to everybody else tensors travel.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Collection, Sequence
from time import monotonic

from paceline.messages import Address, Message
from paceline.ports import Delivery
from paceline.transport.arrivals import Arrival
from paceline.transport.departures import Departure
from paceline.transport.piece import Spec
from paceline.transport.shm import SocketPort
from paceline.transport.tcp import TcpPort

CHECK_S = 1.0
"""How long TCP is left alone at most: what has begun there has deadlines that no event tells of."""


class Joint:
    """An `engine.exchange.Exchange` of `near`, for whom it knows, and `far`. Not for use by two threads."""

    def __init__(self, near: SocketPort, far: TcpPort) -> None:
        self._near, self._far = near, far
        self._left_near: set[Address] = set()
        self._poll = select.poll()
        for port in (near, far):
            self._poll.register(port.fileno(), select.POLLIN)

    @property
    def peers(self) -> Collection[Address]:
        """Who is connected now."""
        return {*self._near.peers, *self._far.peers}

    def reason(self, peer: Address) -> str:
        """Why the connection of `peer` ended."""
        return (self._near if peer in self._left_near else self._far).reason(peer)

    def is_near(self, peer: Address) -> bool:
        """Whether a peer shares memory with this process."""
        return peer in self._near.peers

    def adopt(self, peer: Address, sock: socket.socket) -> None:
        """Take over a connected socket of this machine whose other end is known to be `peer`."""
        self._near.adopt(peer, sock)

    def send(self, to: Address, message: Message, attachments: Sequence[int] = ()) -> None:
        """Hand over a message. Raises PeerLostError."""
        (self._near if to in self._near.peers else self._far).send(to, message, attachments)

    def receive(self, timeout_s: float) -> Delivery | None:
        """The next delivery, of this machine first."""
        deadline_s = monotonic() + timeout_s
        while True:
            delivery = self._near.receive(0.0)
            if delivery is not None and delivery.message is None:
                self._left_near.add(delivery.sender)
            delivery = delivery or self._far.receive(0.0)
            left_s = deadline_s - monotonic()
            if delivery is not None or left_s <= 0.0:
                return delivery
            self._poll.poll(1000.0 * min(left_s, CHECK_S))

    def expect(self, peer: Address, key: int, spec: Spec, place: memoryview) -> Arrival:
        """See `TcpPort.expect`."""
        return self._far.expect(peer, key, spec, place)

    def start(self, to: Address, key: int, spec: Spec, data: memoryview, *, released_bytes: int | None = None) -> Departure:
        """See `TcpPort.start`."""
        return self._far.start(to, key, spec, data, released_bytes=released_bytes)

    def guess(self, to: Address, key: int, spec: Spec, data: memoryview) -> Departure:
        """See `TcpPort.guess`."""
        return self._far.guess(to, key, spec, data)

    def widen(self, peer: Address, *, lanes: int) -> None:
        """See `TcpPort.widen`."""
        self._far.widen(peer, lanes=lanes)

    def close(self) -> None:
        """Close every connection."""
        self._near.close()
        self._far.close()
