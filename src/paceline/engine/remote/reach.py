"""What the ports of workers and servers ask of the connections below them: messages, tensors, and who shares memory."""

from __future__ import annotations

from typing import Protocol

from paceline.messages import Address
from paceline.ports import Port
from paceline.transport.arrivals import Arrival
from paceline.transport.departures import Departure
from paceline.transport.piece import Spec


class Reach(Port, Protocol):
    """A port to peers of which some share memory with this process (`Joint`), or none (`TcpPort`)."""

    def is_near(self, peer: Address) -> bool:
        """Whether a peer shares memory with this process; a tensor is neither expected of it nor sent to it."""
        ...

    def expect(self, peer: Address, key: int, spec: Spec, place: memoryview) -> Arrival:
        """Name the place where tensor `key` of a peer is to land."""
        ...

    def guess(self, to: Address, key: int, spec: Spec, data: memoryview) -> Departure:
        """Begin to send a tensor that `to` expects, piece by piece, while it may still change."""
        ...

    def widen(self, peer: Address, *, lanes: int) -> None:
        """Have so many lanes for tensors each way with a peer that was connected to from here."""
        ...

    def start(self, to: Address, key: int, spec: Spec, data: memoryview, *, released_bytes: int | None = None) -> Departure:
        """Send a tensor that `to` expects as `key`: all of it, or what is released now and later."""
        ...
