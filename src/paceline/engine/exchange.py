"""What the coordinator's process asks of its port beyond sending and receiving."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Protocol

from paceline.messages import Address
from paceline.ports import Port


class Exchange(Port, Protocol):
    """A port that knows who is there."""

    @property
    def peers(self) -> Collection[Address]:
        """Who is connected now."""
        ...

    def reason(self, peer: Address) -> str:
        """Why the connection of `peer` ended."""
        ...

    def adopt(self, peer: Address, sock: socket.socket) -> None:
        """Take over a connected socket of this machine whose other end is known to be `peer`."""
        ...
