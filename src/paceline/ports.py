"""The seam between the roles and what carries their messages: three methods, so that a fake is short.

An attachment is an open file descriptor of a memory file (a memfd); a transport without them refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from paceline.messages import Address, Message


class Delivery(NamedTuple):
    """One thing that arrived. `message` None: the peer's end of the connection is closed.

    `attachments` are descriptors that now belong to the receiver, who closes them.
    """

    sender: Address
    message: Message | None
    attachments: tuple[int, ...] = ()


class Port(Protocol):
    """One process's access to its peers."""

    def send(self, to: Address, message: Message, attachments: Sequence[int] = ()) -> None:
        """Hand over a message; the descriptors stay the caller's. Raises PeerLostError when `to` is gone."""
        ...

    def receive(self, timeout_s: float) -> Delivery | None:
        """The next delivery, or None after `timeout_s`. Messages of one peer keep their order."""
        ...

    def close(self) -> None:
        """Close every connection; peers see their end."""
        ...
