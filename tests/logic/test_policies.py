"""Each policy by a table of signals and answers, and what holds for all of them."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from measured import noisy, signals, workers
from paceline.hybrid import Hybrid, parse_mode
from paceline.logic.policies import goodput
from paceline.logic.policies.balance import Balance
from paceline.logic.policies.catalogue import policy_of
from paceline.logic.policies.dssp import landing
from paceline.logic.policies.policy import Decision, Move, Policy
from paceline.logic.safety import dwell_share, may_move
from paceline.logic.sentence import numbers_in, written
from paceline.logic.signals import Signals
from paceline.pace import check_pace, parse_pace

SLOW = noisy(4, seed=1, spread=0.05, slow=4.0)
EVEN = noisy(4, seed=1, spread=0.02)


def policy(text: str) -> Policy:
    mode = parse_mode(text)
    assert isinstance(mode, Hybrid)
    made = policy_of(mode)
    assert made is not None
    return made


def move(after: str, *, share: float = 0.1, kind: str = "policy", before: str = "sync") -> Move:
    return Move(10, 640, share, before, after, "", 1.0, kind)


TAKEN_BACK = (move("async", share=0.2), move("sync", share=0.3, kind="restore", before="async"))


def check(decision: Decision, name: str | None, *words: str) -> None:
    """The pace that was chosen, and words of the sentence, whose numbers are all among its inputs."""
    assert (None if decision.pace is None else decision.pace.name) == name, decision.why
    for word in words:
        assert word in decision.why
    assert set(numbers_in(decision.why)) <= set(decision.inputs.values())


def test_a_users_own_policy_is_answered_outside():
    mode = parse_mode("hybrid:mine.py:choose")
    assert isinstance(mode, Hybrid)
    assert policy_of(mode) is None


@pytest.mark.parametrize("text", ["hybrid", "hybrid:syncswitch", "hybrid:stragglers", "hybrid:adasync"])
def test_what_judges_is_bound_by_the_dwell(text):
    assert policy(text).judges


@pytest.mark.parametrize("text", ["hybrid:sync@0,async@0.5", "dssp:1:4"])
def test_what_is_told_by_hand_or_moves_no_pace_is_not(text):
    assert not policy(text).judges


# --- schedule -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "pace", "chosen", "word"),
    [
        (0.05, "sync", None, "stays until 10 %"),
        (0.1, "sync", "async", "async begins at 10 %"),
        (0.2, "async", None, "stays until 60 %"),
        (0.7, "async", "ssp:3", "begins at 60 %"),
        (0.7, "ssp:3", None, "to the end"),
        (None, "sync", None, "not known"),
    ],
)
def test_a_schedule_is_obeyed_by_the_share_that_is_done(share, pace, chosen, word):
    check(policy("hybrid:sync@0,async@0.1,ssp:3@0.6").decide(signals(pace, share=share), ()), chosen, word)


# --- syncswitch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "pace", "warming_up", "history", "chosen", "word"),
    [
        (0.05, "sync", False, (), None, "until 10 %"),
        (0.12, "sync", False, (), "async", "12 % of the work is done, async begins at 10 %"),
        (0.12, "sync", True, (), None, "warms up"),
        (0.5, "async", False, (), None, "to the end"),
        (0.35, "sync", False, TAKEN_BACK, None, "until 40 %"),
        (0.45, "sync", False, TAKEN_BACK, "async", "40 %"),
        (None, "sync", False, (), None, "not known"),
        (1.0, "sync", False, (*TAKEN_BACK, *TAKEN_BACK, *TAKEN_BACK), None, "until 100 %"),
    ],
)
def test_syncswitch_goes_async_after_its_share_and_the_warm_up(share, pace, warming_up, history, chosen, word):
    check(policy("hybrid:syncswitch").decide(signals(pace, share=share, warming_up=warming_up), history), chosen, word)


# --- goodput ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "history", "chosen", "word"),
    [
        ({"times": EVEN}, (), None, "a move needs 1.05 times"),
        ({"times": SLOW}, (), "async", "times sync's"),
        ({"times": SLOW, "share": 0.05}, (), "backup:1", "at sync's worth"),
        ({"times": SLOW, "share": None}, (), "backup:1", "at sync's worth"),
        ({"times": SLOW, "warming_up": True}, (), "backup:1", "at sync's worth"),
        ({"times": SLOW, "share": 0.3}, TAKEN_BACK, "backup:1", "at sync's worth"),
        ({"times": SLOW, "share": 0.45}, TAKEN_BACK, "async", "times sync's"),
        ({"times": SLOW, "relative_change": 0.2}, (), "backup:1", "at sync's worth"),
        ({"times": noisy(2, seed=1, spread=0.05, slow=4.0), "share": 0.05}, (), None, "before 10 % of the work, 5 % is done"),
        ({"times": noisy(2, seed=1, spread=0.05, slow=4.0), "warming_up": True}, (), None, "warms up"),
        ({"times": noisy(2, seed=1, spread=0.05, slow=4.0), "share": None}, (), None, "not known"),
        ({"times": [(0.1,) * 32]}, (), None, "no other pace"),
        ({"times": [(0.1,) * 32, (0.1,) * 7]}, (), None, "worker 1 has 7 steps measured, 8 are needed"),
        ({"times": [(0.0,) * 32] * 4}, (), None, "stays"),
        ({"times": [], "workers": ()}, (), None, "no worker"),
        ({"times": SLOW, "pace": "async"}, (), None, "async stays"),
        ({"times": SLOW, "pace": "async", "share": 0.05}, (), None, "async stays"),
        ({"times": EVEN, "pace": "backup:1"}, (), "ssp:3", "times backup:1's"),
        ({"times": EVEN, "pace": "backup:1", "share": 0.05}, (), "sync", "times backup:1's"),
        ({"times": SLOW, "pace": "ssp:3,lr_rule=none"}, (), "async", "would train nothing"),
    ],
)
def test_goodput_takes_the_best_pace_that_the_guard_leaves_it(fields, history, chosen, word):
    check(policy("hybrid").decide(signals(**fields), history), chosen, word)


@pytest.mark.parametrize("text", ["hybrid", "hybrid:stragglers", "hybrid:adasync:9"])
@pytest.mark.parametrize(("num_at_start", "live"), [(1, 5), (2, 5), (3, 8), (8, 3), (8, 1)])
def test_workers_that_join_or_leave_never_make_a_pace_that_cannot_be(text, num_at_start, live):
    """A quorum above the workers at the start is refused, so no policy asks for one, however many are live."""
    times = [(0.1,) * 32] * (live - 1) + [(0.1,) * 16 + (0.4,) * 16]
    decision = policy(text).decide(signals(times=times, share=0.05, num_at_start=num_at_start, loss=0.1, loss_first=2.0), ())
    chosen = [one.pace for one in decision.candidates] + ([decision.pace.name] if decision.pace else [])
    for name in chosen:
        check_pace(parse_pace(name), num_at_start)


def test_every_candidate_is_said_with_its_goodput():
    decision = policy("hybrid").decide(signals(times=SLOW), ())
    assert [one.pace for one in decision.candidates] == ["sync", "backup:1", "ksync:2", "kasync:2", "ssp:3", "async"]
    assert all(one.goodput == pytest.approx(one.samples_per_s * one.efficiency) for one in decision.candidates)
    assert decision.predicted == max(decision.candidates, key=lambda one: one.goodput).samples_per_s


def test_predictions_are_scaled_by_what_the_pace_in_force_came_to():
    """Even workers of 16 samples in 0.1 s make 640 a second; seen were 576."""
    decision = policy("hybrid").decide(signals(samples_per_s=576.0), ())
    assert decision.candidates[0].samples_per_s == pytest.approx(576.0)
    assert decision.candidates[-1].samples_per_s == pytest.approx(576.0, rel=0.01)


def test_a_run_told_not_to_scale_its_rate_is_not_sent_where_that_ruins_it():
    """Without scaling, a small batch at sync's rate is worth nothing where gradients are noise; a weighted pace is not touched."""
    mode = parse_mode("hybrid")
    assert isinstance(mode, Hybrid)
    made = policy_of(mode, "none")
    assert made is not None
    efficiency = {one.pace: one.efficiency for one in made.decide(signals(times=EVEN), ()).candidates}
    assert efficiency["ssp:3"] == efficiency["kasync:2"] == 0.0
    assert efficiency["async"] == pytest.approx(1.0, abs=0.01)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.05, 2.0), min_size=2, max_size=6), st.floats(0.0, 1.0))
def test_of_constant_workers_none_is_sent_where_it_is_slower(means, share):
    """The rates of sync and async by hand; a quorum of constant workers is at most as fast as all of them without waiting."""
    seen = signals(times=[(one,) * 32 for one in means], share=share)
    decision = policy("hybrid").decide(seen, ())
    sync, free = 16.0 * len(means) / max(means), 16.0 * sum(1 / one for one in means)
    if decision.pace is not None:
        assert decision.predicted is not None
        assert decision.predicted > sync
        assert decision.predicted <= 1.1 * free
    if free < 1.04 * sync:
        assert decision.pace is None


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from(["ksync:1", "ssp:0", "kbatchsync:1", "async,weighting=none,lr_rule=none"]), st.integers(3, 8)
)
def test_a_planted_slower_candidate_is_never_chosen(seed, planted, num_workers):
    """Each of them wastes most of even workers' work: by dropping it, by waiting, or by steps that are too long."""
    original = goodput.candidates_for
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(goodput, "candidates_for", lambda live, start: [*original(live, start), parse_pace(planted)])
        decision = policy("hybrid").decide(signals(times=noisy(num_workers, seed=seed, spread=0.2)), ())
    assert planted in [one.pace for one in decision.candidates]
    assert decision.pace is None or decision.pace.name != planted


# --- stragglers ---------------------------------------------------------------------------------------------

JUST_NOW = [*EVEN[:3], (*EVEN[3][:16], *SLOW[3][16:])]
GONE = [*EVEN[:3], (*SLOW[3][:16], *EVEN[3][16:])]


@pytest.mark.parametrize(
    ("times", "pace", "share", "chosen", "word"),
    [
        (EVEN, "sync", 0.5, None, "sync stays"),
        (JUST_NOW, "sync", 0.5, "backup:1", "it has just begun"),
        (JUST_NOW, "sync", 0.02, "backup:1", "it has just begun"),
        (SLOW, "sync", 0.5, None, "still evening that out"),
        (SLOW, "backup:1", 0.02, None, "before 10 % of the work, 2 % is done"),
        (SLOW, "backup:1", None, None, "not known"),
        (SLOW, "backup:1", 0.5, "async", "that lasts"),
        (JUST_NOW, "backup:1", 0.5, None, "backup:1 stays"),
        (GONE, "backup:1", 0.5, "sync", "the straggler is gone"),
        (EVEN, "async", 0.5, None, "to the end"),
        (SLOW, "async", 0.5, None, "to the end"),
    ],
)
def test_stragglers_climb_the_ladder_one_rung_at_a_time(times, pace, share, chosen, word):
    check(policy("hybrid:stragglers").decide(signals(pace, times=times, share=share), ()), chosen, word)


def test_shares_that_are_not_followed_do_not_hold_the_next_rung_back():
    """A run that cuts no batches leaves the shares even, whatever is asked."""
    made = policy("hybrid:stragglers")
    first = made.decide(signals(times=SLOW), ())
    assert first.shares
    check(first, None)
    check(made.decide(signals(times=SLOW), ()), "backup:1", "shares do not even it out")


def test_in_async_parts_are_even_again():
    """A small piece there is a whole step of an optimizer that does not feel a gradient's length."""
    uneven = tuple(msgspec.structs.replace(worker, part=part) for worker, part in zip(workers(SLOW), (0.3, 0.1, 0.3, 0.3), strict=True))
    decision = policy("hybrid:stragglers").decide(signals("async", times=SLOW, share=0.5, workers=uneven), ())
    check(decision, None, "even part")
    assert dict(decision.shares) == dict.fromkeys(range(4), 0.25)
    assert policy("hybrid:stragglers").decide(signals("async", times=SLOW, share=0.5), ()).shares == ()


def test_two_stragglers_are_both_left_out_and_never_more_than_half():
    slow = (0.4,) * 32
    made = policy("hybrid:stragglers").decide(signals(times=[(0.1,) * 32] * 4 + [(0.1,) * 16 + (0.4,) * 16] * 2), ())
    check(made, "backup:2")
    most = policy("hybrid:stragglers").decide(signals(times=[(0.1,) * 32] * 3 + [(0.1,) * 16 + slow[:16]] * 2), ())
    check(most, "backup:2")


def balanced(speeds: list[float], rounds: int, noise: float = 0.0, seed: int = 0) -> list[dict[int, float]]:
    """Shares by round of workers with so many samples a second, a batch of 64 cut among them."""
    draw, balance = random.Random(seed), Balance()
    shares = dict.fromkeys(range(len(speeds)), 1.0 / len(speeds))
    made = [dict(shares)]
    for _ in range(rounds):
        times = [(64 * shares[number] / speed * draw.lognormvariate(0.0, noise),) * 32 for number, speed in enumerate(speeds)]
        rows = tuple(
            msgspec.structs.replace(worker, part=shares[worker.id], step_samples=64 * shares[worker.id]) for worker in workers(times)
        )
        shares |= dict(balance.parts(signals(times=times, workers=rows)))
        made.append(dict(shares))
    return made


def test_shares_come_to_the_speeds_and_stay():
    """The rule itself has its own tests; here it is fed from signals, and its state is kept."""
    made = balanced([400.0, 400.0, 400.0, 100.0], 12)
    assert made[-1][3] == pytest.approx(1 / 13, rel=0.06)
    assert made[-1] == made[-2]
    assert sum(made[-1].values()) == pytest.approx(1.0)


def test_workers_without_a_measured_step_have_no_new_parts():
    assert Balance().parts(signals(times=[(0.1,) * 8, ()])) == ()
    assert Balance().parts(signals(times=[], workers=())) == ()


def test_shares_that_chase_noise_move_less_and_less():
    made = balanced([100.0] * 4, 60, noise=0.3)
    moved = [sum(abs(after[number] - before[number]) for number in after) for before, after in pairwise(made)]
    assert sum(moved[-15:]) < 0.5 * sum(moved[:15])


# --- adasync ------------------------------------------------------------------------------------------------


def test_adasync_takes_a_loss_next_to_nothing_for_a_quorum_of_all():
    check(policy("hybrid:adasync").decide(signals("ksync:2", loss=5e-324, loss_first=2.0), ()), "ksync:4")


@pytest.mark.parametrize(
    ("pace", "loss", "history", "chosen"),
    [
        ("sync", 2.0, (), "ksync:4"),
        ("ksync:4", 2.0, (), None),
        ("ksync:4", 1.9, (), "ksync:5"),
        ("ksync:4", 0.5, (), "ksync:8"),
        ("ksync:8", 0.001, (), None),
        ("ksync:6", 2.0, (), None),
        ("ksync:4", 2.0, (move("ksync:6"),), "ksync:6"),
        ("ksync:4", math.nan, (), None),
        ("ksync:4", -1.0, (), None),
        ("sync", None, (), "ksync:4"),
    ],
)
def test_adasync_grows_its_quorum_as_the_loss_falls_and_never_shrinks_it(pace, loss, history, chosen):
    seen = signals(pace, num_workers=8, loss=loss, loss_first=2.0)
    check(policy("hybrid:adasync").decide(seen, history), chosen)


def test_adasyncs_first_quorum_is_outside_the_root():
    seen = signals("ksync:3", num_workers=8, loss=0.5, loss_first=2.0)
    check(policy("hybrid:adasync:3").decide(seen, ()), "ksync:6", "8 workers")
    check(policy("hybrid:adasync:9").decide(signals("sync", num_workers=2, loss=1.0, loss_first=1.0), ()), "ksync:2")


# --- dssp ---------------------------------------------------------------------------------------------------


def two(fast_s: float, slow_s: float, **fields) -> Signals:
    times = [(fast_s,) * 32, (slow_s,) * 32]
    return signals("ssp:1", times=times, workers=workers(times, **fields))


def test_dssp_lets_the_fast_one_go_until_its_push_falls_on_one_of_the_slow():
    """Pushes at 1, 2, 3 ... and at 3.6, 7.2, 10.8: the first of the nearest within 2 to 11 are 7 and 7.2 (a lead of 6)."""
    decision = policy("dssp:1:10").decide(two(1.0, 3.6), ())
    assert decision.leads == ((0, 6),)
    check(decision, None, "within 0.2 s", "the slowest, worker 1")


def test_a_lead_that_was_given_is_not_given_again():
    check(policy("dssp:1:10").decide(two(1.0, 3.6, max_lead=6), ()), None)
    assert policy("dssp:1:10").decide(two(1.0, 3.6, max_lead=6), ()).leads == ((1, 1),)


def test_even_workers_keep_the_lower_bound():
    assert policy("dssp:3:15").decide(signals("ssp:3"), ()).leads == ()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0.01, 5.0), min_size=2, max_size=6), st.integers(0, 5), st.integers(0, 20), st.integers(0, 9), st.floats(0.0, 9.0)
)
def test_leads_stay_within_their_bounds_and_the_slowest_gets_the_lower(means, low, more, lead, since_s):
    times = [(one,) * 32 for one in means]
    seen = signals(f"ssp:{low}", times=times, workers=workers(times, lead=lead, since_s=since_s, max_lead=low + more + 1))
    decision = policy(f"dssp:{low}:{low + more}").decide(seen, ())
    assert all(low <= given <= low + more for _, given in decision.leads)
    slowest = max(seen.workers, key=lambda worker: worker.compute_s)
    assert dict(decision.leads)[slowest.id] == low


@given(st.floats(0.1, 3.0), st.floats(3.0, 9.0), st.integers(0, 4), st.integers(0, 12))
def test_no_other_lead_falls_nearer(fast_s, slow_s, low, most):
    """By trying all of them on a list of the slow one's pushes."""
    fast, slow = two(fast_s, slow_s).workers
    pushes = [slow_s * turn for turn in range(1, 200)]
    away = [min(abs(fast_s * (low + extra + 1) - push) for push in pushes) for extra in range(most + 1)]
    assert landing(fast, slow, low, most).wait_s == pytest.approx(min(away), abs=1e-6)


# --- all of them --------------------------------------------------------------------------------------------

ALL = ["hybrid", "hybrid:goodput:0.3", "hybrid:syncswitch", "hybrid:stragglers", "hybrid:adasync", "hybrid:sync@0,async@0.5", "dssp:1:8"]


@settings(max_examples=150, deadline=None)
@given(
    text=st.sampled_from(ALL),
    pace=st.sampled_from(["sync", "backup:1", "ksync:2", "kasync:2", "ssp:3", "async", "softsync:2", "ksync:2,grace_s=0.1"]),
    num_workers=st.integers(1, 6),
    seed=st.integers(0, 1000),
    slow=st.sampled_from([1.0, 3.0, 20.0]),
    share=st.none() | st.floats(0.0, 1.0),
    loss=st.none() | st.floats(-1.0, 1e6) | st.just(math.nan),
    rate=st.floats(0.0, 1e7),
    history=st.sampled_from([(), TAKEN_BACK, (move("ksync:2"),)]),
)
def test_every_number_of_every_sentence_is_among_its_inputs(text, pace, num_workers, seed, slow, share, loss, rate, history):
    seen = signals(
        pace,
        times=noisy(num_workers, seed=seed, spread=0.3, slow=slow),
        share=share,
        loss=loss,
        loss_first=2.0,
        samples_per_s=rate,
        warming_up=seed % 2 == 0,
        num_at_start=4,
    )
    decision = policy(text).decide(seen, history)
    assert decision.why
    assert set(numbers_in(decision.why)) <= set(decision.inputs.values()), decision
    assert decision.pace is None or decision.pace.name != pace


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["hybrid", "hybrid:syncswitch", "hybrid:stragglers", "hybrid:adasync"]), st.integers(0, 10_000), st.floats(0.0, 0.8))
def test_under_noise_no_policy_moves_more_than_once_per_dwell(text, seed, spread):
    """A whole run of signals that are noise around a constant."""
    made, history, pace = policy(text), [], "sync"
    for tick in range(48):
        times = noisy(4, seed=seed + tick, spread=spread)
        seen = signals(
            pace, times=times, share=tick / 48, updates_left=1000.0 * (1 - tick / 48), version=20 * tick, loss=1.0, loss_first=1.0
        )
        decision = made.decide(seen, tuple(history))
        if decision.pace is None or not may_move(seen, history).ok:
            continue
        history.append(Move(20 * tick, 640 * tick, tick / 48, pace, decision.pace.name, decision.why, 1.0))
        pace = decision.pace.name
    for before, after in pairwise(history):
        apart = (after.share or 0.0) - (before.share or 0.0)
        assert apart >= 0.15 * (1 - (before.share or 0.0)) - 1e-9
    if spread < 0.02:
        assert all(one.after in ("async", "ksync:2") for one in history)
        assert len(history) <= 1


@given(st.floats(1e-12, 1e12))
def test_a_number_is_said_in_three_digits_and_read_back(value):
    said = numbers_in(written(value))
    assert len(said) == 1
    assert said[0] == pytest.approx(value, rel=0.006)


def test_dwell_of_a_move_is_known_to_the_tests_above():
    assert dwell_share(signals(share=0.5, updates_left=1e9), move("async")) == pytest.approx(0.135)
