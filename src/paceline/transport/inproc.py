"""A port between the roles of one process: the same contract as sockets, without any.

For tests and for whoever runs several roles in one process; attachments are duplicated as a socket would.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from threading import Condition
from time import monotonic

from paceline.errors import PeerLostError
from paceline.messages import Address, Message
from paceline.ports import Delivery
from paceline.transport.connection import MAX_ATTACHMENTS, MAX_QUEUED


class Exchange:
    """Where the ports of one job find each other: every two that are open are connected."""

    def __init__(self) -> None:
        self.ports: dict[Address, InprocPort] = {}
        self.changed = Condition()

    def port(self, me: Address) -> InprocPort:
        """A new open port of `me`. Raises ValueError when there is one."""
        with self.changed:
            if me in self.ports:
                raise ValueError(f"{me} has a port already")
            for peer in self.ports.values():
                peer.meet(me)
            self.ports[me] = port = self._new(me)
        return port

    def _new(self, me: Address) -> InprocPort:
        return InprocPort(self, me)


class InprocPort:
    """A `ports.Port` on an `Exchange`."""

    def __init__(self, exchange: Exchange, me: Address) -> None:
        self.me = me
        self._exchange = exchange
        self.inbox: deque[Delivery] = deque()
        self._lost: set[Address] = set()

    @property
    def num_unread(self) -> int:
        """How much waits to be received."""
        return len(self.inbox)

    def send(self, to: Address, message: Message, attachments: Sequence[int] = ()) -> None:
        """Put a message into the inbox of `to`; one that does not read is lost, as with sockets."""
        with self._exchange.changed:
            peer = self._exchange.ports.get(to)
            if peer is None or to in self._lost:
                raise PeerLostError(f"{self.me} cannot send {type(message).__name__} to {to}: it is gone")
            if len(attachments) > MAX_ATTACHMENTS:
                raise ValueError(f"a message carries at most {MAX_ATTACHMENTS} attachments, got {len(attachments)}")
            if peer.num_unread >= MAX_QUEUED:
                self.part_from(to)
                peer.part_from(self.me)
                raise PeerLostError(f"{to} is lost to {self.me}: it left {MAX_QUEUED} messages unread")
            peer.hear(Delivery(self.me, message, tuple(os.dup(fd) for fd in attachments)))
            self._exchange.changed.notify_all()

    def receive(self, timeout_s: float) -> Delivery | None:
        """The next delivery; waits for another thread's up to `timeout_s`."""
        deadline_s = monotonic() + timeout_s
        with self._exchange.changed:
            while not self.inbox:
                wait_s = deadline_s - monotonic()
                if wait_s <= 0.0:
                    return None
                self._exchange.changed.wait(wait_s)
            return self.inbox.popleft()

    def close(self) -> None:
        """Leave the exchange; everybody else is told."""
        with self._exchange.changed:
            if self._exchange.ports.pop(self.me, None) is None:
                return
            for delivery in self.inbox:
                for fd in delivery.attachments:
                    os.close(fd)
            self.inbox.clear()
            for peer in self._exchange.ports.values():
                if peer.me not in self._lost:
                    peer.part_from(self.me)
            self._exchange.changed.notify_all()

    def meet(self, peer: Address) -> None:
        """A peer of this address is there (again)."""
        self._lost.discard(peer)

    def part_from(self, peer: Address) -> None:
        """Hear that the connection with `peer` has ended."""
        self._lost.add(peer)
        self.hear(Delivery(peer, None))

    def hear(self, delivery: Delivery) -> None:
        """Take a delivery in."""
        self.inbox.append(delivery)
