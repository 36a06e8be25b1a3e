"""A learning rate scheduler on the run's sample clock: a prepared one moves with the run, not with one worker's steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.session.adopted import adopt


class Clock(NamedTuple):
    """Where the run is: `updates` on its sample clock; `in_loop` while a prepared loader is iterated."""

    updates: int
    in_loop: bool


def follow(scheduler: Any, read: Callable[[], Clock], *, late_epochs: int = 0) -> None:
    """Let `scheduler.step()` tick as often as the run's clock has since the last call, inside a loader's loop.

    Between epochs a call is one tick, and a metric (ReduceLROnPlateau) is handed through. A worker that joined
    in epoch `late_epochs` catches up with the first.
    """
    kind: Any = type(scheduler)
    ticked = 0
    behind = late_epochs

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal ticked, behind
        clock = read()
        if args or kwargs:
            kind.step(self, *args, **kwargs)
        elif clock.in_loop:
            for _ in range(clock.updates - ticked):
                kind.step(self)
            ticked = clock.updates
        else:
            for _ in range(1 + behind):
                kind.step(self)
            behind = 0

    adopt(scheduler, step=step)
