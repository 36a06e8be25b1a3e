"""Tensors on their way in: bytes land where the receiver said beforehand, and nowhere else.

A tensor that nobody expects, or that is not of the dtype and shape that were expected, ends its connection.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from time import monotonic

from paceline.errors import DeadlineError, PeerLostError, ProtocolError
from paceline.messages import Address
from paceline.transport.piece import Piece, Spec, check_spec

MAX_EXPECTED = 4096
SETTLE_S = 5.0
"""How long a thread may take to let go of a connection that was shut."""


class Arrival:
    """A tensor that is expected; `is_complete` when every byte is there and was checked.

    Its place belongs to the transport until then, or until it is given up with `withdraw`.
    """

    def __init__(self, arrivals: Arrivals, key: int, spec: Spec, place: memoryview) -> None:
        self.key = key
        self.spec = spec
        self.place = place
        self.seen: set[int] = set()
        self.num_whole = 0
        self.num_writing = 0
        self.is_complete = False
        self._arrivals = arrivals

    def wait(self, timeout_s: float) -> None:
        """Return when it is complete. Raises PeerLostError when its sender is gone, DeadlineError after `timeout_s`."""
        self._arrivals.wait(self, timeout_s)

    def withdraw(self) -> None:
        """Expect it no longer; once this returns, nothing is written into its place."""
        self._arrivals.withdraw(self)


class Arrivals:
    """All that is expected of one peer."""

    def __init__(self, peer: Address, give_up: Callable[[str], None]) -> None:
        self.peer = peer
        self.num_pieces = 0
        self._give_up = give_up
        self._changed = Condition()
        self._expected: dict[int, Arrival] = {}
        self._lost = ""

    def expect(self, key: int, spec: Spec, place: memoryview) -> Arrival:
        """Name the place of a tensor. Raises ValueError when the place does not fit or the key is in use."""
        check_spec(spec)
        view = memoryview(place).cast("B")
        if view.readonly or len(view) != spec.size_bytes:
            raise ValueError(f"the place of {spec} is {spec.size_bytes} writable bytes, got {len(view)}")
        with self._changed:
            if key in self._expected or len(self._expected) >= MAX_EXPECTED:
                raise ValueError(f"tensor {key} of {self.peer} is expected already, or {MAX_EXPECTED} others are")
            arrival = self._expected[key] = Arrival(self, key, spec, view)
        return arrival

    def begin(self, piece: Piece) -> Arrival:
        """Let a piece be written. Raises ProtocolError when it has no place."""
        with self._changed:
            arrival = self._expected.get(piece.key)
            if arrival is None:
                raise ProtocolError(f"it sent tensor {piece.key}, which is not expected")
            if piece.spec != arrival.spec:
                raise ProtocolError(f"it sent tensor {piece.key} as {piece.spec} instead of {arrival.spec}")
            if piece.number in arrival.seen:
                raise ProtocolError(f"it sent piece {piece.number} of tensor {piece.key} twice")
            arrival.seen.add(piece.number)
            arrival.num_writing += 1
        return arrival

    def end(self, arrival: Arrival, *, whole: bool) -> bool:
        """A piece was written and checked, or not; returns whether it was the last one."""
        with self._changed:
            arrival.num_writing -= 1
            arrival.num_whole += whole
            self.num_pieces += 1
            self._changed.notify_all()
            return whole and arrival.num_whole == arrival.spec.num_pieces

    def finish(self, arrival: Arrival) -> None:
        """The sender has been told that all is there; whoever waits for the tensor may go on, and even close."""
        with self._changed:
            arrival.is_complete = True
            if self._expected.get(arrival.key) is arrival:
                del self._expected[arrival.key]
            self._changed.notify_all()

    def wait(self, arrival: Arrival, timeout_s: float) -> None:
        """See `Arrival.wait`."""
        deadline_s = monotonic() + timeout_s
        with self._changed:
            while not arrival.is_complete:
                if self._lost and not arrival.num_writing:
                    raise PeerLostError(f"tensor {arrival.key} will not come from {self.peer}: {self._lost}")
                left_s = deadline_s - monotonic()
                if left_s <= 0.0:
                    there = f"{arrival.num_whole} of {arrival.spec.num_pieces} pieces"
                    raise DeadlineError(f"tensor {arrival.key} of {self.peer} was not there after {timeout_s:g} s ({there} were)")
                self._changed.wait(left_s)

    def withdraw(self, arrival: Arrival) -> None:
        """See `Arrival.withdraw`: a peer in the middle of a piece is cut off, because only its end frees the place."""
        with self._changed:
            if self._expected.get(arrival.key) is arrival:
                del self._expected[arrival.key]
            if not arrival.num_writing:
                return
        self._give_up(f"it was in the middle of tensor {arrival.key} when that was given up")
        with self._changed:
            if not self._changed.wait_for(lambda: not arrival.num_writing, SETTLE_S):
                raise DeadlineError(f"tensor {arrival.key} of {self.peer} is still written {SETTLE_S:g} s after its connection was shut")

    def fail(self, reason: str) -> None:
        """Nothing more comes from this peer."""
        with self._changed:
            self._lost = self._lost or reason
            self._changed.notify_all()
