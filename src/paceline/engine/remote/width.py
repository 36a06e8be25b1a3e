"""How many connections for tensors a worker has with a server, each way: a second one where the link is fast, by its first transfers.

One connection fills a slow link, and there a second one would only take its part from others. A fast link is not filled by the
one thread that sends and seals, and the one that receives and checks, at each end of a connection.
"""

from __future__ import annotations

NARROW, WIDE = 1, 2
FAST_BYTES_S = 4e8
"""From here on one connection is what limits: 3.2 Gbit/s."""
LEAST_BYTES = 1 << 20
NUM_JUDGED = 3


class Width:
    """The judgement of one link, from what was sent through one connection; `is_settled` when there is nothing more to learn."""

    def __init__(self) -> None:
        self._num_judged = 0

    @property
    def is_settled(self) -> bool:
        """Whether it was judged."""
        return self._num_judged >= NUM_JUDGED

    def learn(self, num_bytes: int, seconds: float) -> bool:
        """Whether a transfer shows that the link is fast. One that was slow may have had other reasons, three have not.

        >>> width = Width()
        >>> width.learn(10_000_000, 0.8), width.learn(10_000_000, 0.02), width.is_settled
        (False, True, True)
        """
        if self.is_settled or num_bytes < LEAST_BYTES:
            return False
        is_fast = num_bytes >= FAST_BYTES_S * seconds
        self._num_judged = NUM_JUDGED if is_fast else self._num_judged + 1
        return is_fast
