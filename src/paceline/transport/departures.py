"""Tensors on their way out: cut into pieces, each sent by whichever connection of the peer is free, as far as released.

The sender may release a tensor from its beginning on, so that a pull streams behind the apply, or piece by piece, so that a
gradient streams behind the backward pass. It is done when the peer has said that all of it is in place; until then its
memory must not change, unless it is a guess.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from threading import Condition
from time import monotonic
from typing import NamedTuple

from paceline.errors import DeadlineError, PeerLostError, ProtocolError
from paceline.messages import Address
from paceline.transport.piece import Piece, Spec, check_spec

MAX_UNDER_WAY = 1024


class Departure:
    """A tensor under way to a peer. `is_guess`: what was released may change, and then arrives in any state, but arrives."""

    def __init__(self, departures: Departures, key: int, spec: Spec, data: memoryview, *, is_guess: bool = False) -> None:
        self.key = key
        self.spec = spec
        self.data = data
        self.is_guess = is_guess
        self.ready: deque[int] = deque()
        self.released: set[int] = set()
        self.num_gone = 0
        self.is_taken = False
        self._num_in_row = 0
        self._departures = departures

    def up_to(self, released_bytes: int) -> Iterator[int]:
        """The pieces that lie within the first `released_bytes`, each given once."""
        while self._num_in_row < self.spec.num_pieces and self.spec.piece(self._num_in_row).stop <= released_bytes:
            self._num_in_row += 1
            yield self._num_in_row - 1

    def release_piece(self, number: int) -> None:
        """Let one piece leave; it changes no more until `wait` has returned, unless this is a guess."""
        self._departures.release(self, (number,))

    def release(self, released_bytes: int) -> None:
        """Let the first `released_bytes` leave; they change no more until `wait` has returned."""
        self._departures.release(self, self.up_to(released_bytes))

    def wait(self, timeout_s: float) -> None:
        """Return when the peer has it all. Raises PeerLostError when it is gone, DeadlineError after `timeout_s`."""
        self._departures.wait(self, timeout_s)


class Leaving(NamedTuple):
    """A piece that leaves now. `may_change`: somebody may write into `data` meanwhile."""

    piece: Piece
    data: memoryview
    may_change: bool


class Departures:
    """All tensors under way to one peer."""

    def __init__(self, peer: Address) -> None:
        self.peer = peer
        self.num_pieces = 0
        self._changed = Condition()
        self._waiting: deque[Departure] = deque()
        self._under_way: dict[int, Departure] = {}
        self._wakers: list[int] = []
        self._lost = ""

    def start(self, key: int, spec: Spec, data: memoryview, *, is_guess: bool = False) -> Departure:
        """Announce a tensor of which nothing is released yet. Raises PeerLostError when the peer is gone."""
        check_spec(spec)
        view = memoryview(data).cast("B")
        if len(view) != spec.size_bytes:
            raise ValueError(f"{spec} has {spec.size_bytes} bytes, got {len(view)}")
        with self._changed:
            if self._lost:
                raise PeerLostError(f"tensor {key} cannot be sent to {self.peer}: {self._lost}")
            if key in self._under_way or len(self._under_way) >= MAX_UNDER_WAY:
                raise ValueError(f"tensor {key} is under way to {self.peer} already, or {MAX_UNDER_WAY} others are")
            departure = self._under_way[key] = Departure(self, key, spec, view, is_guess=is_guess)
            self._waiting.append(departure)
        return departure

    def release(self, departure: Departure, numbers: Iterable[int]) -> None:
        """See `Departure.release`; a piece that was released before leaves once all the same."""
        with self._changed:
            new = [number for number in numbers if number not in departure.released]
            departure.released.update(new)
            departure.ready.extend(new)
            if new:
                self._wake()

    def next_piece(self) -> Leaving | None:
        """The next piece that may leave, and its bytes."""
        with self._changed:
            for departure in self._waiting:
                if departure.ready:
                    number = departure.ready.popleft()
                    departure.num_gone += 1
                    self.num_pieces += 1
                    if departure.num_gone == departure.spec.num_pieces:
                        self._waiting.remove(departure)
                    piece = Piece(departure.key, number, departure.spec)
                    return Leaving(piece, departure.data[departure.spec.piece(number)], departure.is_guess)
        return None

    def taken(self, key: int) -> None:
        """The peer has all of a tensor. Raises ProtocolError when it cannot have."""
        with self._changed:
            departure = self._under_way.get(key)
            if departure is None or departure.num_gone < departure.spec.num_pieces:
                raise ProtocolError(f"it thanked for tensor {key}, which it was not sent whole")
            del self._under_way[key]
            departure.is_taken = True
            self._changed.notify_all()

    def wait(self, departure: Departure, timeout_s: float) -> None:
        """See `Departure.wait`."""
        deadline_s = monotonic() + timeout_s
        with self._changed:
            while not departure.is_taken:
                if self._lost:
                    raise PeerLostError(f"tensor {departure.key} did not reach {self.peer}: {self._lost}")
                left_s = deadline_s - monotonic()
                if left_s <= 0.0:
                    left = f"{departure.num_gone} of {departure.spec.num_pieces} pieces"
                    raise DeadlineError(f"{self.peer} did not have tensor {departure.key} after {timeout_s:g} s ({left} had left)")
                self._changed.wait(left_s)

    def fail(self, reason: str) -> None:
        """The peer is gone."""
        with self._changed:
            self._lost = self._lost or reason
            self._waiting.clear()
            self._changed.notify_all()

    # --- the threads that send ------------------------------------------------------------------------------

    def attach(self, waker: int) -> None:
        """Write to this eventfd whenever there may be something to send."""
        with self._changed:
            self._wakers.append(waker)

    def detach(self, waker: int) -> None:
        """The thread of this eventfd ends."""
        with self._changed:
            self._wakers.remove(waker)

    def _wake(self) -> None:
        for waker in self._wakers:
            os.eventfd_write(waker, 1)
