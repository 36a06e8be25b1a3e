"""The gate: when a fold is made, who may start, which gradients are refused. Pure verdicts with their reasons."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from paceline.pace import Late, Pace


class Verdict(NamedTuple):
    """A decision and, when it is no, the reason."""

    ok: bool
    reason: str = ""


YES = Verdict(True)


class Crowd(NamedTuple):
    """The counts that a fold depends on.

    `live` members have started once; `holders` of them hold samples, a pending gradient included; `computing`
    have a step under way, `in_place` of them on the shards' own memory; `startable` are about to begin one.
    """

    live: int
    holders: int
    computing: int
    in_place: int
    startable: int


def quorum_in_force(pace: Pace, crowd: Crowd) -> int:
    """How many pending gradients make an update now: distinct quorums count at most the holders.

    >>> from paceline.pace import parse_pace
    >>> quorum_in_force(parse_pace("ksync:3"), Crowd(live=4, holders=2, computing=2, in_place=0, startable=0))
    2
    """
    if pace.quorum.rule == "all":
        return max(1, crowd.holders)
    quorum = pace.quorum.of(max(1, crowd.live))
    return max(1, min(quorum, crowd.holders)) if pace.distinct else quorum


def fold_due(pace: Pace, num_pending: int, crowd: Crowd) -> Verdict:
    """Whether what is pending is folded now (the grace is the caller's, who has the time).

    The quiescence rule: when nobody computes and nobody may start, nothing more can come.
    """
    if not num_pending:
        return Verdict(False, "nothing is pending")
    if crowd.in_place and not pace.reads_in_place:
        return Verdict(False, f"{crowd.in_place} worker(s) still read the shards in place")
    quorum = quorum_in_force(pace, crowd)
    if num_pending >= quorum:
        return YES
    if not crowd.computing and not crowd.startable:
        return Verdict(True, "nobody computes and nobody may start")
    return Verdict(False, f"{num_pending} of {quorum} gradients are there")


def may_start(pace: Pace, *, lead: int, has_pending: bool) -> Verdict:
    """Whether a worker may begin its next step."""
    if pace.distinct and has_pending:
        return Verdict(False, "update")
    if pace.max_lead is not None and lead > pace.max_lead:
        return Verdict(False, "lead")
    return YES


def admit(pace: Pace, *, norm: float, base: int, version: int) -> Verdict:
    """Whether an arrived gradient is accepted; the reason of a refusal is one word for the events.

    >>> from paceline.pace import parse_pace
    >>> admit(parse_pace("ksync:3"), norm=1.0, base=4, version=5)
    Verdict(ok=False, reason='late')
    """
    if not isfinite(norm):
        return Verdict(False, "not finite")
    if pace.late is Late.DROP and base != version:
        return Verdict(False, "late")
    if pace.max_staleness is not None and version - base > pace.max_staleness:
        return Verdict(False, "stale")
    return YES
