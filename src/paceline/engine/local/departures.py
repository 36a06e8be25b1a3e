"""Workers that leave a run which goes on: each is told of once, and not before it is clear that somebody is left to go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

HOLD_S = 0.5
"""What kills one worker often kills all of them, but not in the same instant."""


class Departure(NamedTuple):
    """What happened, what follows from it for the others, and when that can be said."""

    event: str
    outcome: str
    due_s: float


class Departures:
    """Tells with `say` of those that have left."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._held: list[Departure] = []
        self._ends = False

    def add(self, event: str, outcome: str, now_s: float) -> None:
        """A worker has left; `outcome` is true only while the run goes on."""
        self._held.append(Departure(event, outcome, now_s + HOLD_S))
        if self._ends:
            self.end()

    def tell(self, now_s: float) -> None:
        """Tell of those that the run has outlived."""
        while self._held and now_s >= self._held[0].due_s:
            self._tell_next(goes_on=True)

    def end(self, *, well: bool = False) -> None:
        """The run is over; unless it went `well`, nobody goes on."""
        self._ends = True
        while self._held:
            self._tell_next(goes_on=well)

    def _tell_next(self, *, goes_on: bool) -> None:
        departure = self._held.pop(0)
        self._say(f"paceline: {departure.event}{departure.outcome if goes_on else ''}")
