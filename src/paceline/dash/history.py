"""The events of a run gathered in one pass: the sample clock, stalenesses, moves of the pace, parts, members, refusals.

Whatever a run does, what is kept has a cap, except two numbers an update.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

_MOST_KEPT = 5000
_MOST_SETTINGS = 100_000

Row = Mapping[str, object]


class Move(NamedTuple):
    """A change of pace. `undone` samples were taken back with it when it restored an earlier state, else it is None."""

    at_s: float
    samples: float
    before: str
    after: str
    why: str
    undone: int | None = None


class Setting(NamedTuple):
    """From `at_s` on, `value` is what a worker's part of a batch, or its bound on the lead, was set to."""

    at_s: float
    samples: float
    worker: int
    value: float


class Member(NamedTuple):
    """A process of the run; `reason` is empty while it has not left."""

    role: str
    id: int
    host: str
    pid: int
    joined_s: float
    left_s: float = 0.0
    reason: str = ""


class Refusals(NamedTuple):
    """All gradients that were refused for one reason."""

    reason: str
    workers: Counter[int]
    first_s: float
    last_s: float


def number(row: Row, key: str) -> float:
    """A number of a record, 0 when it is not there."""
    value = row.get(key)
    return value if isinstance(value, int | float) else 0


def words(row: Row, key: str) -> str:
    """A text of a record, empty when it is not there."""
    value = row.get(key)
    return value if isinstance(value, str) else ""


def inner(row: Row, key: str) -> dict[str, object]:
    """A record within a record, empty when it is not there."""
    value = row.get(key)
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def records(row: Row, key: str) -> list[Row]:
    """The records of a list in a record; what is none is left out."""
    value = row.get(key)
    return [one for one in cast("list[Row]", value) if isinstance(one, dict)] if isinstance(value, list) else []


class History:
    """What `take` was given; every time is `t_s` as written, `origin_s` is the first lease's."""

    def __init__(self) -> None:
        self.origin_s: float | None = None
        self.times, self.clock = array("d"), array("d")
        self.stalenesses: Counter[int] = Counter()
        self.folded: Counter[int] = Counter()
        self.first_pace = ""
        self.moves: list[Move] = []
        self.shares: list[Setting] = []
        self.leads: list[Setting] = []
        self.members: list[Member] = []
        self.refusals: dict[str, Refusals] = {}
        self.end: Row = {}
        self._seats: dict[tuple[str, int], int] = {}
        self._by_kind: dict[str, Callable[[float, Row], None]] = {
            "join": self._join,
            "leave": self._leave,
            "lease": self._lease,
            "update": self._update,
            "refuse": self._refuse,
            "pace": self._pace,
            "restore": self._restore,
            "shares": self._share,
            "lead": self._lead,
            "end": self._end,
        }

    def take(self, event: Row) -> None:
        """The next event; a kind that is not known concerns other readers."""
        take = self._by_kind.get(words(event, "event"))
        if take is not None:
            take(number(event, "t_s"), event)

    def samples_at(self, at_s: float) -> float:
        """The sample clock before `at_s`."""
        index = bisect_left(self.times, at_s)
        return self.clock[index - 1] if index else 0.0

    def count(self, role: str) -> int:
        """How many different members of a role have joined."""
        return sum(seat[0] == role for seat in self._seats)

    def _lease(self, at_s: float, _event: Row) -> None:
        if self.origin_s is None:
            self.origin_s = at_s

    def _update(self, at_s: float, event: Row) -> None:
        self._lease(at_s, event)
        self.times.append(at_s)
        self.clock.append(number(event, "samples"))
        self.first_pace = self.first_pace or words(event, "pace")
        for member in records(event, "members"):
            self.stalenesses[int(number(member, "staleness"))] += 1
            self.folded[int(number(member, "worker"))] += 1

    def _refuse(self, at_s: float, event: Row) -> None:
        reason = words(event, "reason")
        if reason not in self.refusals and len(self.refusals) >= _MOST_KEPT:
            reason = "other"
        old = self.refusals.get(reason) or Refusals(reason, Counter(), at_s, at_s)
        old.workers[int(number(event, "worker"))] += 1
        self.refusals[reason] = old._replace(last_s=at_s)

    def _pace(self, at_s: float, event: Row) -> None:
        """A restore is told of twice: the pace that it brings back is no further change."""
        last = self.moves[-1] if self.moves else None
        if last is None or last.undone is None or (last.before, last.after) != (words(event, "from"), words(event, "to")):
            self._move(at_s, event, None)

    def _restore(self, at_s: float, event: Row) -> None:
        self._move(at_s, event, int(number(event, "undone")))

    def _move(self, at_s: float, event: Row, undone: int | None) -> None:
        if len(self.moves) < _MOST_KEPT:
            samples = number(event, "samples") or self.samples_at(at_s)
            self.moves.append(Move(at_s, samples, words(event, "from"), words(event, "to"), words(event, "why"), undone))

    def _share(self, at_s: float, event: Row) -> None:
        parts = inner(event, "parts")
        if len(self.shares) < _MOST_SETTINGS:
            told = ((int(worker), number(parts, worker)) for worker in parts if worker.isdecimal())
            self.shares += [Setting(at_s, self.samples_at(at_s), worker, part) for worker, part in told]

    def _lead(self, at_s: float, event: Row) -> None:
        if len(self.leads) < _MOST_SETTINGS:
            self.leads.append(Setting(at_s, self.samples_at(at_s), int(number(event, "worker")), number(event, "lead")))

    def _join(self, at_s: float, event: Row) -> None:
        if len(self.members) < _MOST_KEPT:
            role, name = words(event, "role"), int(number(event, "id"))
            self._seats[role, name] = len(self.members)
            self.members.append(Member(role, name, words(event, "host"), int(number(event, "pid")), at_s))

    def _leave(self, at_s: float, event: Row) -> None:
        seat = self._seats.get((words(event, "role"), int(number(event, "id"))))
        if seat is not None:
            self.members[seat] = self.members[seat]._replace(left_s=at_s, reason=words(event, "reason") or "left")

    def _end(self, _at_s: float, event: Row) -> None:
        self.end = event
