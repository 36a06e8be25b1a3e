"""How long a move is left alone, when it is taken back, and what that does to the guard."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured import signals
from paceline.logic.policies.policy import Move
from paceline.logic.safety import (
    LEAST_UPDATES,
    dwell_is_over,
    dwell_share,
    guarded_share,
    is_less_sync,
    judge,
    may_move,
)
from paceline.logic.sentence import numbers_in
from paceline.pace import parse_pace


def move(share: float | None = 0.2, *, version: int = 100, loss: float | None = 1.0, kind: str = "policy") -> Move:
    return Move(version, 6400, share, "sync", "async", "", loss, kind)


@pytest.mark.parametrize(
    ("share", "updates_left", "staleness", "dwell"),
    [
        (0.2, 1e6, 0.0, 0.15 * 0.8),
        (0.2, 320.0, 0.0, 40 * 0.8 / 320 + 0.02),
        (0.2, 800.0, 3.0, 120 * 0.8 / 800),
        (0.2, 600.0, 3.0, 120 * 0.8 / 600),
        (0.2, 100.0, 3.0, 0.25 * 0.8),
        (0.9, 1e6, 0.0, 0.15 * 0.1),
    ],
    ids=["15 %", "15 % over updates", "both", "updates", "25 %", "late"],
)
def test_a_dwell_is_a_part_of_what_remains_or_enough_updates(share, updates_left, staleness, dwell):
    seen = signals(share=share, updates_left=updates_left, staleness_mean=staleness)
    assert dwell_share(seen, move(share)) == pytest.approx(dwell)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.none() | st.floats(0.0, 1e9), st.floats(0.0, 1e6), st.integers(1, 1000))
def test_a_dwell_is_between_15_and_25_percent_of_what_remained(moved_at, share, left, staleness, num_workers):
    seen = signals(share=share, updates_left=left, staleness_mean=staleness, num_workers=num_workers)
    dwell = dwell_share(seen, move(moved_at))
    assert dwell is not None
    assert 0.15 * (1 - moved_at) <= dwell <= 0.25 * (1 - moved_at)


@pytest.mark.parametrize(("updates", "staleness", "over"), [(49, 0.0, False), (50, 0.0, True), (119, 3.0, False), (120, 3.0, True)])
def test_without_a_plan_a_dwell_is_counted_in_updates(updates, staleness, over):
    seen = signals(share=None, updates_left=None, version=100 + updates, staleness_mean=staleness)
    assert dwell_is_over(seen, move(None)) is over
    assert dwell_share(seen, move(None)) is None
    assert LEAST_UPDATES == 50


def test_a_policy_moves_once_per_dwell_and_says_how_far_it_is():
    assert may_move(signals(), []).ok
    held = may_move(signals(share=0.25, updates_left=1e6), [move(0.2)])
    assert (held.ok, held.reason) == (False, "the move to async was 5 % of the work ago, its dwell is 12 %")
    assert held.inputs == {"ago": 5.0, "dwell": 12.0}
    assert may_move(signals(share=0.33, updates_left=1e6), [move(0.2)]).ok
    assert not may_move(signals(share=0.33, updates_left=1e6), [move(0.2), move(0.3, kind="restore")]).ok
    held = may_move(signals(share=None, updates_left=None, version=103), [move(None)])
    assert held.reason == "the move to async was 3 updates ago, its dwell is 50"
    assert held.inputs == {"ago": 3.0, "dwell": 50.0}


@pytest.mark.parametrize(
    ("share", "loss", "goes_back", "is_over"),
    [
        (0.25, 3.9, False, False),
        (0.25, 4.1, True, False),
        (0.35, 1.4, False, True),
        (0.35, 1.6, True, True),
        (0.25, math.nan, True, False),
        (0.35, math.inf, True, True),
        (0.25, None, False, False),
    ],
)
def test_four_times_the_loss_goes_back_at_once_and_one_and_a_half_at_the_end(share, loss, goes_back, is_over):
    judged = judge(signals("async", share=share, updates_left=1e6, loss=loss), move(0.2))
    assert (judged.goes_back, judged.is_over) == (goes_back, is_over)
    assert bool(judged.why) is goes_back
    assert set(numbers_in(judged.why)) <= set(judged.inputs.values())


def test_the_transient_of_a_published_good_switch_is_left_alone():
    """The loss trebles, and is back after not quite a fifth of what remains (Sync-Switch, ResNet-32 on CIFAR-10)."""
    for step in range(100):
        after = step / 100 * 0.8
        loss = 1.0 + 2.0 * max(0.0, 1.0 - after / (0.19 * 0.8))
        assert not judge(signals("async", share=0.2 + after, updates_left=1e4, loss=loss, loss_first=2.3), move(0.2)).goes_back


def test_a_loss_that_is_not_known_judges_nothing_but_one_that_is_not_finite_does():
    assert not judge(signals("async", share=0.25, loss=9.0), move(0.2, loss=None)).goes_back
    assert judge(signals("async", share=0.25, loss=math.nan), move(0.2, loss=None)).goes_back


def test_near_zero_a_multiple_of_the_loss_means_nothing():
    seen = signals("async", share=0.25, updates_left=1e6, loss=0.02, loss_first=2.0)
    assert not judge(seen, move(0.2, loss=0.002)).goes_back
    assert judge(msgspec.structs.replace(seen, loss=0.09), move(0.2, loss=0.002)).goes_back


@pytest.mark.parametrize(
    ("history", "share"),
    [
        ([], 0.1),
        ([move(0.1)], 0.1),
        ([move(0.1), move(0.2, kind="restore")], 0.2),
        ([move(0.3), move(0.35, kind="restore")], 0.6),
        ([move(0.1), move(0.15, kind="restore"), move(0.2), move(0.25, kind="restore")], 0.4),
        ([move(0.6), move(0.7, kind="restore")], 1.0),
        ([move(None), move(None, kind="restore")], 0.2),
    ],
)
def test_the_guarded_share_doubles_with_each_move_that_was_taken_back(history, share):
    assert guarded_share(0.1, history) == pytest.approx(share)


def test_a_guard_of_nothing_is_something_after_a_move_was_taken_back():
    assert guarded_share(0.0, []) == 0.0
    assert guarded_share(0.0, [move(0.0), move(0.01, kind="restore")]) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("before", "after", "less"),
    [
        ("sync", "sync", False),
        ("sync", "backup:1", True),
        ("backup:1", "ksync:2", True),
        ("ksync:1", "kasync:4", True),
        ("kasync:4", "kasync:2", True),
        ("kasync:2", "ssp:3", True),
        ("ssp:1", "ssp:3", True),
        ("ssp:3", "async", True),
        ("async", "sync", False),
        ("async", "ssp:3", False),
        ("backup:1", "sync", False),
    ],
)
def test_less_sync_is_an_order_of_paces(before, after, less):
    assert is_less_sync(parse_pace(before), parse_pace(after), 4) is less
