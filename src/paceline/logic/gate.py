"""The gate: when a fold is made, who may start, which gradients are refused. Pure verdicts with their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from paceline.pace import Late, Pace


class Verdict(NamedTuple):
    """A decision and, when it says something, the reason."""

    ok: bool
    reason: str = ""


YES = Verdict(True)
QUIESCENT = Verdict(True, "nobody computes and nobody may start")
NOTHING_PENDING = Verdict(False, "nothing is pending")
READ_IN_PLACE = Verdict(False, "workers still read the shards in place")
BELOW_QUORUM = Verdict(False, "fewer than the quorum are pending")
UNTIL_UPDATE = Verdict(False, "update")
UNTIL_SLOWEST = Verdict(False, "lead")
NOT_FINITE = Verdict(False, "not finite")
LATE = Verdict(False, "late")
STALE = Verdict(False, "stale")
RESTORED = Verdict(False, "restored")


@dataclass(slots=True)
class Crowd:
    """The counts that a fold depends on, kept as they change.

    `live` members have started once; `holders` of them hold samples, a pending gradient included, and so does a dead
    one until its fold; `computing` have a step under way, `in_place` of them on the shards' own memory; `startable`
    are about to begin one.
    """

    live: int = 0
    holders: int = 0
    computing: int = 0
    in_place: int = 0
    startable: int = 0


def quorum_in_force(pace: Pace, crowd: Crowd) -> int:
    """How many pending gradients make an update now: distinct quorums count at most the holders.

    >>> from paceline.pace import parse_pace
    >>> quorum_in_force(parse_pace("ksync:3"), Crowd(live=4, holders=2, computing=2))
    2
    """
    if pace.quorum.rule == "all":
        return crowd.holders or 1
    quorum = pace.quorum.of(crowd.live or 1)
    return max(1, min(quorum, crowd.holders)) if pace.distinct else quorum


def fold_due(pace: Pace, num_pending: int, crowd: Crowd) -> Verdict:
    """Whether what is pending is folded now (the grace is the caller's, who has the time).

    The quiescence rule: when nobody computes and nobody may start, nothing more can come.
    """
    if not num_pending:
        return NOTHING_PENDING
    if crowd.in_place and not pace.reads_in_place:
        return READ_IN_PLACE
    if num_pending >= quorum_in_force(pace, crowd):
        return YES
    if not crowd.computing and not crowd.startable:
        return QUIESCENT
    return BELOW_QUORUM


def may_start(pace: Pace, *, lead: int, has_pending: bool, max_lead: int | None) -> Verdict:
    """Whether a worker may begin its next step, its lead bound by `max_lead`; if not, what it waits for."""
    if has_pending and pace.distinct:
        return UNTIL_UPDATE
    if max_lead is not None and lead > max_lead:
        return UNTIL_SLOWEST
    return YES


def admit(pace: Pace, *, norm: float, base: int, version: int, floor: int = 0) -> Verdict:
    """Whether an arrived gradient is accepted; the reason of a refusal is a word for the events.

    `floor` is the version of the last Restore: what was computed on older parameters is of a past that was given up.

    >>> from paceline.pace import parse_pace
    >>> admit(parse_pace("ksync:3"), norm=1.0, base=4, version=5)
    Verdict(ok=False, reason='late')
    """
    if base < floor:
        return RESTORED
    if not isfinite(norm):
        return NOT_FINITE
    if base != version and pace.late is Late.DROP:
        return LATE
    if pace.max_staleness is not None and version - base > pace.max_staleness:
        return STALE
    return YES
