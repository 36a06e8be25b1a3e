"""Who may connect to a port, and who is there or on the way in. Used by the port's thread and its attendant's."""

from __future__ import annotations

from collections.abc import Container
from threading import Lock
from time import monotonic

from paceline.messages import Address
from paceline.transport.handshake import Identity, Lane, Refusal
from paceline.transport.peer import Peer
from paceline.transport.reception import HANDSHAKE_S


class Register:
    """Admits peers that have proved the key: expected ones, each life of an address once, older generations never."""

    def __init__(self, me: Address, incarnation: int) -> None:
        self.expected: Container[Address] = ()
        self.generation = 0
        self._me = me
        self._incarnation = incarnation
        self._lock = Lock()
        self._there: dict[Address, Peer] = {}
        self._used: dict[Address, int] = {}

    def identity(self, lane: Lane, number: int) -> Identity:
        """How this port introduces itself in a connection."""
        return Identity(self._me, lane, number, self._incarnation, self.generation)

    def admit(self, who: Identity, wanted: Address) -> tuple[Refusal, Identity]:
        """Whether a connection is let in, and who it has reached."""
        with self._lock:
            refusal = self._judge(who) if wanted == self._me else Refusal.ELSEWHERE
            return refusal, self.identity(who.lane, who.number)

    def _judge(self, who: Identity) -> Refusal:
        there = self._there.get(who.address)
        if who.generation > self.generation:
            return Refusal.GENERATION
        if who.address not in self.expected:
            return Refusal.STRANGER
        if who.lane is not Lane.CONTROL:
            if there is None or there.incarnation != who.incarnation:
                return Refusal.LANE
            return Refusal.NONE if there.reserve(who.lane, who.number) else Refusal.TAKEN
        if who.incarnation <= self._used.get(who.address, -1):
            return Refusal.USED
        # one that broke off right after it was admitted blocks its next life only as long as a handshake may take
        if there is not None and (there.is_in or monotonic() - there.heard_s < HANDSHAKE_S):
            return Refusal.TAKEN
        self._used[who.address] = who.incarnation
        self._there[who.address] = Peer(who, monotonic())
        return Refusal.NONE

    def find(self, who: Identity) -> Peer | None:
        """The peer that an admitted connection belongs to, unless it has ended meanwhile."""
        with self._lock:
            peer = self._there.get(who.address)
            if peer is None or peer.incarnation != who.incarnation:
                return None
            peer.is_in = True
            return peer

    def forget(self, peer: Peer) -> None:
        """A peer has ended; its address may come back in another life."""
        with self._lock:
            if self._there.get(peer.address) is peer:
                del self._there[peer.address]
