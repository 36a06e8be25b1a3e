"""Ports of one process whose links fail, by a seed: what one says to another is late, lost, doubled, or vanishes.

A delay keeps all of the contract of `ports.Port`: order, whole messages, an end behind everything that was said. A loss and a double
break it, and a hole keeps an end from being told. No port that carries a run lets a message be lost or come twice: its frames are
numbered, and a gap or a repetition ends the connection. Nor does a hole last there: heartbeats end it. So a run's roles see delays
alone. With the other faults too nobody waits beyond its deadline, what is announced to the coordinator twice counts once, and an
answer that comes twice is an error; but a server may follow an order as often as it is given.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from itertools import count
from math import inf
from time import monotonic
from typing import NamedTuple

from paceline.messages import Address, Message
from paceline.ports import Delivery
from paceline.transport.inproc import Exchange, InprocPort


class Faults(NamedTuple):
    """What one direction of a link does to messages. Without arguments: nothing.

    Each arrives after `delay_s` and up to `jitter_s` more, and not before the one that was sent before it. `lost` and `doubled` are
    shares of the messages, between 0 and 1. In a `hole` all vanish, and so does the end of a port.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    lost: float = 0.0
    doubled: float = 0.0
    hole: bool = False


class FaultyExchange(Exchange):
    """An exchange whose links have `faults`, in both directions, but for those that `between` says otherwise. Both may change at any time.

    The messages of a direction have the same fate for the same `seed`, whatever else goes on; only times depend on the machine.
    """

    def __init__(self, seed: int, faults: Faults = Faults()) -> None:  # noqa: B008 - it is a value
        super().__init__()
        self.seed = seed
        self.faults = faults
        self.between: dict[tuple[Address, Address], Faults] = {}
        self._chances: dict[tuple[Address, Address], random.Random] = {}

    def faults_of(self, sender: Address, to: Address) -> Faults:
        """What the link from `sender` to `to` does now."""
        return self.between.get((sender, to), self.faults)

    def chance_of(self, sender: Address, to: Address) -> random.Random:
        """What decides on the link from `sender` to `to`."""
        return self._chances.setdefault((sender, to), random.Random(f"{self.seed} {sender} {to}"))

    def _new(self, me: Address) -> InprocPort:
        return FaultyPort(self, me)


class FaultyPort(InprocPort):
    """A `ports.Port` on a `FaultyExchange`."""

    def __init__(self, exchange: FaultyExchange, me: Address) -> None:
        super().__init__(exchange, me)
        self._network = exchange
        self._late: list[tuple[float, int, Delivery]] = []
        self._due_s: dict[Address, float] = {}
        self._numbers = count()

    @property
    def num_unread(self) -> int:
        """How much waits to be received, now or later."""
        return len(self.inbox) + len(self._late)

    def send(self, to: Address, message: Message, attachments: Sequence[int] = ()) -> None:
        """Send a message, or what the link makes of it; whoever sends into a hole is not told that nobody is there."""
        with self._network.changed:
            faults, chance = self._network.faults_of(self.me, to), self._network.chance_of(self.me, to)
            fate = chance.random()
            if faults.hole or fate < faults.lost:
                return
            for _ in range(2 if fate >= 1.0 - faults.doubled else 1):
                super().send(to, message, attachments)

    def receive(self, timeout_s: float) -> Delivery | None:
        """The next delivery that is due within `timeout_s`."""
        deadline_s = monotonic() + timeout_s
        with self._network.changed:
            while not self._ripen(monotonic()):
                wait_s = min(deadline_s, self._late[0][0] if self._late else inf) - monotonic()
                if deadline_s <= monotonic():
                    return None
                self._network.changed.wait(max(0.0, wait_s))
            return super().receive(0.0)

    def close(self) -> None:
        """Leave the exchange; what had not arrived is lost."""
        with self._network.changed:
            self._ripen(inf)
            super().close()

    def part_from(self, peer: Address) -> None:
        """Hear that the connection with `peer` has ended, unless that vanishes."""
        if not self._network.faults_of(peer, self.me).hole:
            super().part_from(peer)

    def hear(self, delivery: Delivery) -> None:
        """Take a delivery in, which is received when it is due."""
        faults, chance = self._network.faults_of(delivery.sender, self.me), self._network.chance_of(delivery.sender, self.me)
        wait_s = faults.delay_s + (chance.uniform(0.0, faults.jitter_s) if faults.jitter_s else 0.0)
        due_s = self._due_s[delivery.sender] = max(self._due_s.get(delivery.sender, 0.0), monotonic() + wait_s)
        heapq.heappush(self._late, (due_s, next(self._numbers), delivery))

    def _ripen(self, now_s: float) -> bool:
        """Move what is due into the inbox; whether something is there."""
        while self._late and self._late[0][0] <= now_s:
            self.inbox.append(heapq.heappop(self._late)[2])
        return bool(self.inbox)
