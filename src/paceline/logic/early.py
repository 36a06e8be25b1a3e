"""Which of a fixed sequence of buckets may leave while the gradient in them is still being made: a guess.

How often each tensor is written in a step is learned from the steps just before, so accumulation and whoever changes gradients
after the backward pass teach it to wait, and one odd step is forgotten again. What is written behind a bucket that has left makes
the guess a miss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Bytes = tuple[int, int]
"""The place of a tensor, [first, past). An empty one begins where the next does."""
STEPS_REMEMBERED = 8
"""In each of these a tensor was written at most as often as it is waited for."""


class Early:
    """`spans` are the buckets in the order in which they leave: bytes [first, past) of the gradient each.

    >>> early = Early([(64, 128), (0, 64)])
    >>> early.written(64, 128), early.is_due  # nothing is known of a first step
    (False, False)
    >>> early.stepped()
    >>> early.written(64, 128), early.is_due, early.leave(), early.is_missed
    (True, True, 0, False)
    >>> early.written(64, 128), early.is_missed
    (False, True)
    """

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        self.num_left = 0
        self.is_missed = False
        self._spans = spans
        self._inside: dict[Bytes, list[int]] = {}
        self._usual: dict[Bytes, int] = {}
        self._counts: dict[Bytes, int] = {}
        self._seen: deque[dict[Bytes, int]] = deque(maxlen=STEPS_REMEMBERED)
        self._owing = [0] * len(spans)

    def written(self, first: int, past: int) -> bool:
        """The tensor in bytes [first, past) of the gradient holds what a backward pass has made, or something else than before.

        Returns whether it is complete by now, as far as the steps before tell, and nothing of it has left.
        """
        written = (first, past)
        inside = self._inside.get(written)
        if inside is None:
            inside = self._inside[written] = [number for number, (low, high) in enumerate(self._spans) if first < high and low < past]
        count = self._counts[written] = self._counts.get(written, 0) + 1
        is_complete = count == self._usual.get(written)
        if any(number < self.num_left for number in inside):
            self.is_missed = True
        if is_complete:
            for number in inside:
                self._owing[number] -= 1
        return is_complete and not self.is_missed

    @property
    def is_due(self) -> bool:
        """Whether the next bucket may leave: all that a step has ever written into it is there."""
        return bool(self._usual) and not self.is_missed and self.num_left < len(self._spans) and not self._owing[self.num_left]

    def leave(self) -> int:
        """The next bucket leaves; returns which it is."""
        self.num_left += 1
        return self.num_left - 1

    def stepped(self) -> None:
        """The gradient is all there; what is written from now on is of the next one."""
        self._seen.append(self._counts)
        if self._counts != self._usual:
            self._usual = {one: max(seen.get(one, 0) for seen in self._seen) for one in set[Bytes]().union(*self._seen)}
        self._begin()

    def abandoned(self) -> None:
        """What was written is in no step; what has left of it does not count."""
        self.is_missed = self.is_missed or bool(self.num_left)
        self._begin()

    def _begin(self) -> None:
        self._counts = {}
        self._owing = [0] * len(self._spans)
        for written in self._usual:
            for number in self._inside[written]:
                self._owing[number] += 1

    def summed(self) -> None:
        """All buckets have left, and nothing of them counts any more."""
        self.num_left, self.is_missed = 0, False
