"""What a run's policy decided, from decisions.jsonl: how often it was asked, what held it back, what its moves were worth.

The events say which moves were made; this says what each was expected to bring and what came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from paceline.dash.history import Move, Row, number, records, words

_MOST_KEPT = 5000


class Weighed(NamedTuple):
    """A pace that a decision weighed: predicted samples a second, times what a sample is worth against one in sync."""

    pace: str
    samples_per_s: float
    efficiency: float


class Change(NamedTuple):
    """A move of the run and its decision. Rates are samples a second; None: not said."""

    move: Move
    share: float | None = None
    predicted: float | None = None
    came: float | None = None
    weighed: tuple[Weighed, ...] = ()


class Decisions:
    """What `take` was given, line by line."""

    def __init__(self) -> None:
        self.policy = ""
        self.num_asked = self.num_held = 0
        self.last_held = self.last_why = ""
        self.errors: list[float] = []
        self._moved: dict[tuple[bool, str], deque[Row]] = {}
        self._came: dict[int, float] = {}

    def take(self, row: Row) -> None:
        """The next line; a kind that is not known concerns other readers."""
        match words(row, "event"):
            case "decision":
                self._decision(row)
            case "outcome":
                self._outcome(row)
            case "restore":
                self._keep(row, is_restore=True, after=words(row, "to"))
            case _:
                pass

    @property
    def median_error(self) -> float | None:
        """Of the predictions that can be judged, relative to what came; None when there is none."""
        return median(self.errors) if self.errors else None

    def changes(self, moves: Iterable[Move]) -> list[Change]:
        """The moves, which come in order, each with the decision behind it: the earliest of its kind that no move before it had."""
        return [self._change(move) for move in moves]

    def _decision(self, row: Row) -> None:
        self.num_asked += 1
        self.policy = words(row, "policy") or self.policy
        self.last_why = words(row, "why")
        held = words(row, "held")
        if held:
            self.num_held += 1
            self.last_held = held
        if row.get("moved") is True:
            self._keep(row, is_restore=False, after=words(row, "next"))

    def _keep(self, row: Row, *, is_restore: bool, after: str) -> None:
        kept = self._moved.setdefault((is_restore, after), deque())
        if len(kept) < _MOST_KEPT:
            kept.append(row)

    def _outcome(self, row: Row) -> None:
        predicted, came = number(row, "predicted"), number(row, "came")
        if predicted > 0 and came > 0 and len(self.errors) < _MOST_KEPT:
            self._came[int(number(row, "number"))] = came
            self.errors.append(abs(came - predicted) / came)

    def _change(self, move: Move) -> Change:
        rows = self._moved.get((move.undone is not None, move.after))
        if not rows or number(rows[0], "samples") > move.samples:
            return Change(move)
        row = rows.popleft()
        came = self._came.get(int(number(row, "number"))) if move.undone is None else None
        return Change(move, _told(row, "share"), _told(row, "predicted"), came, _weighed(row))


def _told(row: Row, key: str) -> float | None:
    value = row.get(key)
    return value if isinstance(value, int | float) else None


def _weighed(row: Row) -> tuple[Weighed, ...]:
    told = records(row, "candidates")
    return tuple(Weighed(words(one, "pace"), number(one, "samples_per_s"), number(one, "efficiency")) for one in told)
