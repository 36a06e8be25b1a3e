"""One server's turns: it does one thing after another, and updates take it time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.engine.virtual.timeline import Timeline
from paceline.messages import Accept, Fold, Message


class Service:
    """Lets messages wait until those before them are done. `busy_s` is what updates have taken since it was last set to 0."""

    def __init__(self, timeline: Timeline, bytes_per_s: float) -> None:
        self.busy_s = 0.0
        self._timeline, self._bytes_per_s = timeline, bytes_per_s
        self._free_s = 0.0

    def take(self, message: Message | None, shard_bytes: int, handle: Callable[..., object], *arguments: Any) -> None:
        """Call `handle` when the server is through with the message (None: a worker's end), which may pass over the shard some times."""
        cost_s = passes(message) * shard_bytes / self._bytes_per_s
        if not cost_s and self._free_s <= self._timeline.now_s:
            handle(*arguments)
            return
        self._free_s = max(self._free_s, self._timeline.now_s) + cost_s
        self.busy_s += cost_s
        self._timeline.at(self._free_s, handle, *arguments)


def passes(message: Message | None) -> int:
    """How often the shard's bytes are worked through: once for each gradient that is summed, and once for the step."""
    if type(message) is Fold:
        return 1 + sum(not member.gathered for member in message.members)
    return int(type(message) is Accept)
