"""A peer of a port: its connections, how alive it is, and why it ended. Shared by the port's threads.

Whoever finds something wrong calls `lose`, which shuts every connection of the peer; the thread that uses a socket is the
one that closes it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from threading import Lock
from time import monotonic

from paceline.messages import Address
from paceline.transport.arrivals import SETTLE_S, Arrivals
from paceline.transport.departures import Departures
from paceline.transport.handshake import Identity, Lane
from paceline.transport.lanes import ENDED, Carrier, Receiver, Sender
from paceline.transport.stream import Line, shut


class Peer:
    """One peer, from its control lane's handshake to its end."""

    def __init__(self, identity: Identity, now_s: float) -> None:
        self.address: Address = identity.address
        self.incarnation = identity.incarnation
        self.reason = ""
        self.is_in = False
        self.heard_s = now_s
        self.progress = -1
        self.progressed_s = now_s
        self.ended_s: float | None = None
        """When the first of its lanes for tensors came to an orderly end: those of one that leaves all do."""
        self.arrivals = Arrivals(identity.address, self.lose)
        self.departures = Departures(identity.address)
        self._lock = Lock()
        self._reserved: set[tuple[Lane, int]] = {(Lane.CONTROL, 0)}
        self._sockets: list[socket.socket] = []
        self._threads: list[Carrier] = []
        self._num_open: dict[Arrivals | Departures, int] = {self.arrivals: 0, self.departures: 0}

    @property
    def num_pieces(self) -> int:
        """How many pieces of tensors have moved, either way."""
        return self.arrivals.num_pieces + self.departures.num_pieces

    # --- connections ----------------------------------------------------------------------------------------

    def reserve(self, lane: Lane, number: int) -> bool:
        """Whether this connection of the peer is a new one; it counts as there from now on."""
        with self._lock:
            if (lane, number) in self._reserved:
                return False
            self._reserved.add((lane, number))
            return True

    def add(self, sock: socket.socket) -> None:
        """A socket that ends with the peer."""
        with self._lock:
            self._sockets.append(sock)
            if self.reason:
                shut(sock)

    def close(self, sock: socket.socket) -> None:
        """Close a socket, from the thread that used it."""
        with self._lock:
            # `lose` must not shut a descriptor that has become somebody else's
            if sock in self._sockets:
                self._sockets.remove(sock)
            sock.close()

    def carry(self, line: Line, *, outward: bool, generation: Callable[[], int], stall_s: float) -> None:
        """Start the thread of a lane for tensors."""
        self.add(line.sock)
        way = self.departures if outward else self.arrivals
        ended = partial(self._lane_ended, way)
        thread: Carrier
        if outward:
            thread = Sender(line, self.departures, generation=generation, stall_s=stall_s, ended=ended)
        else:
            thread = Receiver(line, self.arrivals, generation=generation, stall_s=stall_s, ended=ended)
        with self._lock:
            self._threads.append(thread)
            self._num_open[way] += 1
        thread.start()

    # --- life -------------------------------------------------------------------------------------------------

    def heard(self, progress: int, now_s: float) -> None:
        """A heartbeat came."""
        self.heard_s = now_s
        if progress != self.progress:
            self.progress, self.progressed_s = progress, now_s

    def _lane_ended(self, way: Arrivals | Departures, sock: socket.socket, reason: str) -> None:
        """A lane for tensors is over. An orderly end is still to be read in the control lane, but who waits for a tensor hears it now."""
        self.close(sock)
        if reason != ENDED:
            self.lose(reason)
            return
        with self._lock:
            self.ended_s = monotonic() if self.ended_s is None else self.ended_s
            self._num_open[way] -= 1
            is_last = not self._num_open[way]
        if is_last:
            way.fail(reason)

    def lose(self, reason: str) -> None:
        """End every connection; the first reason stays."""
        with self._lock:
            self.reason = self.reason or reason
            for sock in self._sockets:
                shut(sock)
        self.arrivals.fail(self.reason)
        self.departures.fail(self.reason)

    def settle(self) -> None:
        """Wait for the threads of a peer that is lost: then nothing writes into its places any more."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(SETTLE_S)

    def abandon(self) -> None:
        """Close the descriptors of a forked child's copy; its threads do not exist there."""
        for sock in self._sockets:
            sock.close()
