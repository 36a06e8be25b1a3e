"""A learning rate scheduler on the run's sample clock: a prepared one moves with the run, not with one worker's steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.optim import Optimizer

from paceline.session.adopted import adopt
from paceline.session.run import say

UNPREPARED = (
    "the learning rate is moved by a scheduler that run.prepare was not given, so it follows the steps of each worker alone; "
    "give it to run.prepare before its first step"
)


class Clock(NamedTuple):
    """Where the run is: `updates` on its sample clock; `in_loop` while a prepared loader is iterated."""

    updates: int
    in_loop: bool


class Rates:
    """Tells once that a scheduler moves the learning rates of `optimizer`, unless one `is_prepared`."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.is_prepared = self._has_told = False
        self.settle()

    def settle(self) -> None:
        """What the rates are now is meant."""
        self._left = self._now()

    def check(self) -> None:
        """Look whether they have moved; a scheduler leaves its mark (`initial_lr`) in the groups that it moves."""
        if self.is_prepared or self._has_told or self._now() == self._left:
            return
        self.settle()
        if any("initial_lr" in group for group in self._optimizer.param_groups):
            self._has_told = True
            say(UNPREPARED)

    def _now(self) -> list[float]:
        return [float(group["lr"]) for group in self._optimizer.param_groups if "lr" in group]


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
