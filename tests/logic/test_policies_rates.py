"""Predicted rates against closed forms, and what a sample is worth."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from measured import exponential_crew, noisy, signals, workers
from paceline.logic.policies.rates import APPLY_PASSES, COPY_PASSES, Crew, costs_of
from paceline.logic.policies.worth import DRIFT_TOLERATED, Scale
from paceline.pace import parse_pace

CREW = exponential_crew(8)


def seconds_per_update(name: str) -> float:
    predicted = CREW.predict(parse_pace(name))
    return predicted.samples_per_update / predicted.samples_per_s


@pytest.mark.parametrize(("k", "seconds"), [(1, 0.403), (2, 0.635), (4, 1.03), (8, 2.72)])
def test_ksync_of_steps_that_are_not_cancelled_takes_what_was_measured(k, seconds):
    """Reference: Dutta et al. 2018 with uninterruptible steps, 8 workers of Exp(1)."""
    assert seconds_per_update(f"ksync:{k}") == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_kbatchasync_takes_k_eighths(k):
    assert seconds_per_update(f"kbatchasync:{k}") == pytest.approx(k / 8, rel=0.02)


def test_sync_takes_the_longest_of_eight():
    harmonic = sum(1 / k for k in range(1, 9))
    assert seconds_per_update("sync") == pytest.approx(harmonic, rel=0.02)


def test_kasync_of_exponential_steps_takes_no_longer_than_cancelled_ksync():
    """A worker that goes on with its stale step is as good as one that begins anew, when steps have no memory."""
    harmonic = sum(1 / k for k in range(5, 9))
    assert seconds_per_update("kasync:4") == pytest.approx(harmonic, rel=0.03)


@pytest.mark.parametrize(("name", "staleness"), [("sync", 0.0), ("ksync:4", 0.0), ("async", 7.0), ("kasync:8", 0.0)])
def test_staleness_is_that_of_equal_workers(name, staleness):
    assert CREW.predict(parse_pace(name)).staleness == pytest.approx(staleness, rel=0.02)


def test_a_lead_binds_the_fast_to_the_slow():
    """Steps of 1 s and 4 s: under ssp all take the slow one's rate in the end, under async each its own."""
    crew = Crew(signals(times=[(1.0,) * 8, (4.0,) * 8], workers=workers([(1.0,) * 8, (4.0,) * 8], step_samples=1.0)))
    assert crew.predict(parse_pace("ssp:3")).samples_per_s == pytest.approx(2 / 4, rel=0.02)
    assert crew.predict(parse_pace("async")).samples_per_s == pytest.approx(1 + 1 / 4, rel=0.03)


def test_steps_beyond_max_staleness_are_refused_and_their_time_is_lost():
    crew = Crew(signals(times=[(1.0,) * 8] * 2 + [(6.0,) * 8], workers=workers([(1.0,) * 8] * 2 + [(6.0,) * 8], step_samples=1.0)))
    assert crew.predict(parse_pace("async,max_staleness=4")).samples_per_s == pytest.approx(2.0, rel=0.03)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=12), st.integers(1, 12))
def test_constant_steps_have_the_rates_that_a_person_computes(means, samples):
    times = [(one,) * 8 for one in means]
    crew = Crew(signals(times=times, workers=workers(times, step_samples=float(samples))))
    sync, free = crew.predict(parse_pace("sync")), crew.predict(parse_pace("async"))
    assert sync.samples_per_s == pytest.approx(samples * len(means) / max(means), rel=1e-6)
    assert sync.samples_per_update == pytest.approx(samples * len(means))
    assert free.samples_per_s == pytest.approx(samples * sum(1 / one for one in means), rel=0.05)
    assert free.samples_per_s >= 0.97 * sync.samples_per_s


def test_a_busy_server_is_a_queue_that_bounds_the_updates():
    """Eight free workers of 0.1 s at a server that takes 0.05 s an update make 20 updates a second and no more."""
    times = [(0.1,) * 32] * 8
    crew = Crew(signals(times=times, workers=workers(times, step_samples=1.0), busy_s=0.05 * (APPLY_PASSES + 8) / (APPLY_PASSES + 1),
                        gradients_per_s=8.0, updates_per_s=1.0, num_shards=1))  # fmt: skip
    assert crew.predict(parse_pace("async")).samples_per_s == pytest.approx(20.0, rel=0.02)


def test_costs_seen_in_sync_tell_what_a_copy_would_take_elsewhere():
    times = [(0.1,) * 32] * 4
    seen = signals(
        times=times, workers=workers(times, exchange_s=0.012), busy_s=0.010, num_shards=2, gradients_per_s=4.0, updates_per_s=1.0
    )
    costs = costs_of(seen)
    assert costs.apply_s(4) == pytest.approx(0.010)
    assert costs.apply_s(1) == pytest.approx(0.010 * (APPLY_PASSES + 1) / (APPLY_PASSES + 4))
    assert costs.copy_s == pytest.approx(2 * COPY_PASSES * 0.001)
    assert costs.extra_s == pytest.approx((0.002,) * 4)


def test_a_queue_seen_in_async_is_not_taken_for_a_workers_own_time():
    times = [(0.1,) * 32] * 4
    seen = signals("async", times=times, workers=workers(times, exchange_s=0.012), busy_s=0.007, num_shards=1, gradients_per_s=40.0,
                   updates_per_s=40.0)  # fmt: skip
    assert costs_of(seen).extra_s == pytest.approx((0.012 - 0.007 - 2 * 0.001 - 0.007 * 0.28 / (2 * 0.72),) * 4)


def test_a_thousand_workers_are_predicted_in_time():
    crew = Crew(signals(times=noisy(1000, seed=1, spread=0.3)))
    least_s = float("inf")
    for _ in range(3):
        begun_s = perf_counter()
        for name in ("sync", "backup:1", "ksync:500", "kasync:500", "ssp:3", "async"):
            assert crew.predict(parse_pace(name)).samples_per_s > 0.0
        least_s = min(least_s, perf_counter() - begun_s)
    assert least_s < 0.5  # 0.06 s on an idle core; others may use it


def test_the_same_signals_give_the_same_rates():
    first, second = (Crew(signals(times=noisy(6, seed=2, spread=0.4))).predict(parse_pace("kasync:3")) for _ in range(2))
    assert first == second


# --- worth --------------------------------------------------------------------------------------------------


def worth(name: str, *, scales_gradients: bool = True, noise_scale: float | None = None, change: float | None = None, **more) -> float:
    times = [(0.1,) * 32] * 4
    seen = signals(times=times, scales_gradients=scales_gradients, noise_scale=noise_scale, relative_change=change, **more)
    crew, sync, pace = Crew(seen), parse_pace("sync"), parse_pace(name)
    predicted = crew.predict(sync)
    return Scale(seen, predicted, None).worth(pace, crew.predict(pace), now=(sync, predicted))


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("sync", {}, 1.0),
        ("ksync:2", {}, 1.0),
        ("kasync:2", {}, 1.0),
        ("ssp:3", {}, 1.0),
        ("async", {}, 1.0),
        ("ssp:3,lr_rule=none", {}, 0.0),
        ("ssp:3,lr_rule=none", {"noise_scale": 0.0}, 1.0),
        ("ksync:2,lr_rule=none", {"noise_scale": 32.0}, 2 * (2 - 4 / 3)),
        ("ssp:3", {"scales_gradients": False}, 1.0),
        ("async", {"scales_gradients": False}, 0.75),
        ("async", {"scales_gradients": False, "noise_scale": 0.0}, 1.0),
    ],
)
def test_a_sample_is_worth_what_the_second_order_model_says(name, fields, expected):
    assert worth(name, **fields) == pytest.approx(min(1.0, expected), abs=0.03)


def test_a_read_from_as_far_as_is_tolerated_counts_half():
    """Three updates of staleness, each of a quarter of the rate and twice the length: 1.5 of sync's change."""
    assert worth("ssp:3", change=DRIFT_TOLERATED / 1.5) == pytest.approx(0.5, abs=0.01)
    assert worth("ksync:2", change=10.0) == 1.0


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["sync", "backup:1", "ksync:2", "kasync:2", "ssp:3", "async", "softsync:2", "ssp:2,lr_rule=none"]),
    scales=st.booleans(),
    noise=st.none() | st.floats(0.0, 1e9),
    change=st.none() | st.floats(0.0, 1e3),
    at_start=st.integers(1, 64),
)
def test_a_worth_is_between_nothing_and_syncs(name, scales, noise, change, at_start):
    assert 0.0 <= worth(name, scales_gradients=scales, noise_scale=noise, change=change, num_at_start=at_start) <= 1.0
