"""A learning rate scheduler on the run's sample clock: a prepared one moves with the run, not with one worker's steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.session.adopted import adopt


class Clock(NamedTuple):
    """Where the run is: `updates` on its sample clock; `in_loop` while a prepared loader is iterated."""

    updates: int
    in_loop: bool


def follow(scheduler: Any, read: Callable[[], Clock], *, late_epochs: int = 0) -> Callable[[], None]:
    """Let `scheduler.step()` tick as often as the run's clock has since the last call, inside a loader's loop.

    Between epochs a call is one tick, and a metric (ReduceLROnPlateau) is handed through. A worker that joined
    in epoch `late_epochs` catches up with the first. Returns what is called before an epoch's first batch: one that
    ticks inside the loop then follows what the others did at the end of the epoch before.
    """
    kind: Any = type(scheduler)
    ticked = 0
    behind = late_epochs
    ticks_in_loop = False

    def catch_up() -> None:
        nonlocal ticked
        if ticks_in_loop:
            updates = read().updates
            for _ in range(updates - ticked):
                kind.step(scheduler)
            ticked = updates

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal behind, ticks_in_loop
        if args or kwargs:
            kind.step(self, *args, **kwargs)
        elif read().in_loop:
            ticks_in_loop = True
            catch_up()
        else:
            for _ in range(1 + behind):
                kind.step(self)
            behind = 0

    adopt(scheduler, step=step)
    return catch_up
