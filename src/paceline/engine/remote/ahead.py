"""A gradient that leaves for the servers while its backward pass goes on: a guess that nobody changes it afterwards.

A piece leaves when all of its bytes have been written; of each tensor one piece stays until the step, so that none arrives
whole before. Whatever is written again behind a piece that has left is a miss: the step's gradient is sent once more, and
no other one is sent ahead. Scripts that accumulate, clip by themselves or unscale have one such step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.errors import PeerLostError
from paceline.transport.departures import Departure
from paceline.transport.wire import PIECE_BYTES

ALIGN_BYTES = 64
"""Parameters begin at multiples of this; what lies between them is nobody's."""


class Ahead:
    """What of the step in hand has been written and sent. `spans` are the shards of servers that are sent to, in the gradient buffer.

    `begin` starts to send one of them; it is called with the first piece that may leave.
    """

    def __init__(self, spans: Mapping[int, slice], begin: Callable[[int], Departure]) -> None:
        self.departures: dict[int, Departure] = {}
        self.is_missed = False
        self._spans = spans
        self._begin = begin
        self._written: set[int] = set()
        # how many bytes of each piece are still to be written
        self._missing = {shard: _sizes(span) for shard, span in spans.items()}

    def written(self, first: int, past: int) -> None:
        """Bytes [first, past) of the gradient buffer hold what the backward pass has made, or something else than before."""
        is_again = first in self._written
        self._written.add(first)
        past = -(-past // ALIGN_BYTES) * ALIGN_BYTES
        for shard, span in self._spans.items():
            low, high = max(first, span.start) - span.start, min(past, span.stop) - span.start
            for number in range(low // PIECE_BYTES, -(-high // PIECE_BYTES)) if low < high else ():
                size = min(high, (number + 1) * PIECE_BYTES) - max(low, number * PIECE_BYTES)
                if is_again:
                    self.is_missed = self.is_missed or self._has_left(shard, number)
                else:
                    self._fill(shard, number, size)

    def _has_left(self, shard: int, number: int) -> bool:
        return shard in self.departures and number in self.departures[shard].released

    def _fill(self, shard: int, number: int, size: int) -> None:
        missing = self._missing[shard]
        missing[number] -= size
        if missing[number] or self.is_missed:
            return
        try:
            if shard not in self.departures and len(missing) > 1:
                self.departures[shard] = self._begin(shard)
        except PeerLostError:
            # a backward pass is no place to say so; the step will
            self.is_missed = True
        else:
            if len(missing) > 1 and len(self.departures[shard].released) < len(missing) - 1:
                self.departures[shard].release_piece(number)


def _sizes(span: slice) -> list[int]:
    size = span.stop - span.start
    return [min(PIECE_BYTES, size - start) for start in range(0, size, PIECE_BYTES)]
