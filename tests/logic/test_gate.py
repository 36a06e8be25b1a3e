"""The gate's verdicts, one rule a test."""

from __future__ import annotations

import pytest

from paceline.logic.fold import absent_in_all
from paceline.logic.gate import (
    BELOW_QUORUM,
    NOTHING_PENDING,
    QUIESCENT,
    READ_IN_PLACE,
    YES,
    Crowd,
    admit,
    fold_due,
    may_start,
    quorum_in_force,
)
from paceline.logic.weighting import omega, weight_of
from paceline.pace import Weighting, parse_pace


@pytest.mark.parametrize(
    ("pace", "live", "holders", "quorum"),
    [
        ("sync", 4, 4, 4),
        ("sync", 4, 2, 2),
        ("sync", 4, 0, 1),
        ("backup:1", 4, 4, 3),
        ("backup:1", 4, 2, 2),
        ("backup:3", 2, 2, 1),
        ("ksync:3", 4, 4, 3),
        ("ksync:3", 4, 1, 1),
        ("kbatchsync:6", 4, 1, 6),
        ("kasync:2", 4, 4, 2),
        ("softsync:2", 5, 1, 2),
        ("softsync:4", 3, 3, 1),
        ("async", 8, 8, 1),
        ("ssp:3", 8, 0, 1),
    ],
)
def test_the_quorum_counts_at_most_the_holders_where_workers_must_differ(pace, live, holders, quorum):
    assert quorum_in_force(parse_pace(pace), Crowd(live, holders)) == quorum


@pytest.mark.parametrize(
    ("pace", "pending", "crowd", "verdict"),
    [
        ("sync", 0, Crowd(2, 2), NOTHING_PENDING),
        ("sync", 1, Crowd(2, 2, computing=1), BELOW_QUORUM),
        ("sync", 2, Crowd(2, 2), YES),
        ("kbatchsync:3", 4, Crowd(2, 2, computing=2), YES),
        ("kbatchsync:3", 1, Crowd(2, 1, computing=1), BELOW_QUORUM),
        ("kbatchsync:3", 1, Crowd(2, 1, startable=1), BELOW_QUORUM),
        ("kbatchsync:3", 1, Crowd(2, 1), QUIESCENT),
        ("async", 1, Crowd(2, 2, computing=1, in_place=1), READ_IN_PLACE),
    ],
)
def test_an_update_is_due_by_quorum_or_when_nothing_more_can_come(pace, pending, crowd, verdict):
    assert fold_due(parse_pace(pace), pending, crowd) is verdict


@pytest.mark.parametrize(
    ("pace", "lead", "has_pending", "reason"),
    [
        ("sync", 0, True, "update"),
        ("kasync:2", 0, True, "update"),
        ("kbatchasync:2", 9, True, ""),
        ("ssp:3", 3, True, ""),
        ("ssp:3", 4, False, "lead"),
        ("async", 99, False, ""),
    ],
)
def test_who_may_start(pace, lead, has_pending, reason):
    verdict = may_start(parse_pace(pace), lead=lead, has_pending=has_pending, max_lead=parse_pace(pace).max_lead)
    assert verdict.reason == reason
    assert verdict.ok == (not reason)


@pytest.mark.parametrize(
    ("pace", "norm", "base", "version", "reason"),
    [
        ("sync", 1.0, 5, 5, ""),
        ("sync", 1.0, 4, 5, "late"),
        ("sync", float("nan"), 5, 5, "not finite"),
        ("async", float("inf"), 5, 5, "not finite"),
        ("async", 1.0, 0, 5, ""),
        ("async,max_staleness=4", 1.0, 1, 5, ""),
        ("async,max_staleness=4", 1.0, 0, 5, "stale"),
        ("kasync:2", 1.0, 0, 9, ""),
    ],
)
def test_which_gradients_are_refused(pace, norm, base, version, reason):
    assert admit(parse_pace(pace), norm=norm, base=base, version=version).reason == reason


def test_staleness_weights():
    assert [omega(Weighting(), tau) for tau in (0, 5)] == [1.0, 1.0]
    assert [omega(Weighting("inverse"), tau) for tau in (0, 1, 4)] == [1.0, 1.0, 0.25]
    assert [omega(Weighting("polynomial", 0.5), tau) for tau in (0, 3)] == [1.0, 0.5]


@pytest.mark.parametrize(("pace", "live", "first", "late"), [("async", 4, 1 / 4, 1 / 10), ("softsync:30", 30, 1 / 29, 1 / 29)])
def test_a_gradient_that_overtook_the_others_weighs_as_one_of_equal_workers(pace, live, first, late):
    assert weight_of(parse_pace(pace), 0, num_live=live) == pytest.approx(first)
    assert weight_of(parse_pace(pace), 9, num_live=live) == pytest.approx(late)


@pytest.mark.parametrize("pace", ["ssp:3", "sync", "sync,weighting=inverse", "async"])
def test_a_worker_alone_and_what_is_never_stale_keep_their_whole_weight(pace):
    assert weight_of(parse_pace(pace), 0, num_live=4 if pace.startswith("s") else 1) == 1.0
    assert weight_of(parse_pace(pace), 0, num_live=0) == 1.0


def test_absent_is_what_is_absent_in_every_member():
    assert absent_in_all([b"\x06\x01", b"\x03\x01"]) == b"\x02\x01"
    assert absent_in_all([b"\x06", b""]) == b""
    assert absent_in_all([b"\x04", b"\x02"]) == b""
