"""The gauges: what the coordinator hears becomes signals with known answers."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.logic.gauges import SETTLING_STEPS, WINDOW_STEPS, Gauges
from paceline.logic.meters import LEAST_FOLDS, NoiseScale, Smoothed, line_slope
from paceline.logic.signals import Signals


def step(
    gauges: Gauges, worker: int, *, compute_s: float = 0.1, wait_s: float = 0.03, exchange_s: float = 0.01, samples: int = 8, now_s=0.0
):
    gauges.stepped(worker, compute_s=compute_s, wait_s=wait_s, exchange_s=exchange_s, samples=samples, now_s=now_s)


def read(gauges: Gauges, *, version: int = 0, now_s: float = 0.0, **more) -> Signals:
    return gauges.read("sync", version, num_at_start=4, now_s=now_s, **more)


def in_sync(num_updates: int, *, computes: tuple[float, ...] = (0.1, 0.1, 0.1, 0.4), total: int | None = None) -> Gauges:
    """A run of `num_updates` sync updates, 8 samples a worker, each as long as its slowest step and 0.1 s."""
    gauges = Gauges()
    gauges.planned(total)
    for worker in range(len(computes)):
        gauges.joined(worker)
    for version in range(1, num_updates + 1):
        now_s = version * (max(computes) + 0.1)
        for worker, compute_s in enumerate(computes):
            step(gauges, worker, compute_s=compute_s, now_s=now_s)
        gauges.folded(version, 8 * len(computes), [0] * len(computes), now_s, members=(), lr_factor=1.0)
    return gauges


def test_a_workers_times_are_split_into_compute_gate_and_exchange():
    worker = read(in_sync(10), version=10).workers[3]
    assert (worker.compute_s, worker.exchange_s) == (pytest.approx(0.4), pytest.approx(0.01))
    assert worker.gate_s == pytest.approx(0.02)
    assert (worker.num_steps, worker.step_samples, len(worker.steps_s)) == (10, 8.0, 10 - SETTLING_STEPS)


def test_the_ratios_are_those_of_the_workers_mean_steps():
    seen = read(in_sync(10))
    assert seen.straggler_ratio == pytest.approx(1 - 0.175 / 0.4)
    assert seen.exchange_ratio == pytest.approx(0.04 / 0.7)


def test_rates_and_what_is_left_follow_the_sample_clock():
    seen = read(in_sync(10, total=640), version=10)
    assert (seen.samples, seen.share) == (320, 0.5)
    assert seen.updates_per_s == pytest.approx(2.0)
    assert seen.gradients_per_s == pytest.approx(8.0)
    assert seen.samples_per_s == pytest.approx(64.0)
    assert seen.updates_left == pytest.approx(10.0)


def test_a_pause_between_two_epochs_is_in_no_rate():
    gauges = in_sync(10)
    gauges.resumed(60.0)
    for version in range(11, 21):
        gauges.folded(version, 32, [0] * 4, 60.0 + 0.5 * (version - 10), members=(), lr_factor=1.0)
    assert read(gauges, version=20).samples_per_s == pytest.approx(64.0)


def test_without_a_plan_there_is_no_share():
    seen = read(in_sync(10))
    assert (seen.share, seen.updates_left) == (None, None)


def test_a_run_beyond_its_plan_is_done():
    seen = read(in_sync(10, total=100))
    assert (seen.share, seen.updates_left) == (1.0, 0.0)


def test_only_the_last_steps_count_and_the_first_ones_never():
    gauges = Gauges()
    gauges.joined(0)
    for _ in range(SETTLING_STEPS):
        step(gauges, 0, compute_s=60.0)
    for _ in range(WINDOW_STEPS):
        step(gauges, 0, compute_s=1.0)
    assert read(gauges).workers[0].compute_s == pytest.approx(1.0)
    for _ in range(WINDOW_STEPS):
        step(gauges, 0, compute_s=0.5)
    assert read(gauges).workers[0].compute_s == pytest.approx(0.5)


def test_a_worker_that_left_is_seen_no_more_and_one_that_joins_is_measured_anew():
    gauges = in_sync(10)
    gauges.left(3)
    step(gauges, 3, compute_s=9.0)
    assert [worker.id for worker in read(gauges).workers] == [0, 1, 2]
    assert read(gauges).straggler_ratio == pytest.approx(0.0)
    gauges.joined(3)
    assert (read(gauges).workers[3].num_steps, read(gauges).num_workers) == (0, 4)


def test_a_change_of_pace_begins_rates_anew_and_keeps_the_workers_times():
    gauges = in_sync(10)
    gauges.moved()
    seen = read(gauges)
    assert (seen.samples_per_s, seen.updates_per_s, seen.staleness_max) == (0.0, 0.0, 0.0)
    assert seen.workers[3].compute_s == pytest.approx(0.4)
    for version in range(11, 31):
        gauges.folded(version, 8, [3], 5.0 + 0.1 * version, members=(), lr_factor=0.25)
    seen = read(gauges, version=30)
    assert seen.updates_per_s == pytest.approx(10.0)
    assert (seen.staleness_mean, seen.lr_factor) == (3.0, 0.25)


def test_staleness_is_told_by_its_quantiles():
    gauges = in_sync(0)
    for version, tau in enumerate([0] * 50 + [1] * 40 + [2] * 6 + [9] * 4, start=1):
        gauges.folded(version, 8, [tau], 0.1 * version, members=(), lr_factor=1.0)
    seen = read(gauges)
    assert (seen.staleness_p50, seen.staleness_p95, seen.staleness_max) == (0.0, 2.0, 9.0)
    assert seen.staleness_mean == pytest.approx(0.88)


def test_leads_bounds_and_shares_are_passed_on():
    seen = read(in_sync(3), leads={1: 2}, max_leads={1: 5}, parts={0: 0.4}, now_s=2.0, lost=1)
    assert [worker.lead for worker in seen.workers] == [0, 2, 0, 0]
    assert [worker.max_lead for worker in seen.workers] == [None, 5, None, None]
    assert [worker.part for worker in seen.workers] == [0.4, 0.25, 0.25, 0.25]
    assert seen.workers[0].since_s == pytest.approx(0.5)
    assert seen.lost == 1


# --- what servers measure -----------------------------------------------------------------------------------


def part(gauges: Gauges, version: int, *, gradient: float = 1.0, parameters: float = 50.0, change: float = 0.5, busy_s=0.01, num_parts=2):
    gauges.measured(version, gradient=gradient, parameters=parameters, change=change, busy_s=busy_s, num_parts=num_parts)


def test_an_update_is_measured_when_every_server_has_told_its_part():
    gauges = in_sync(2)
    part(gauges, 2, busy_s=0.01)
    assert read(gauges).relative_change is None
    part(gauges, 2, busy_s=0.03)
    seen = read(gauges)
    assert seen.relative_change == pytest.approx(0.1)
    assert (seen.busy_s, seen.num_shards) == (pytest.approx(0.03), 2)


def test_the_first_update_which_builds_the_optimizer_says_nothing_of_how_busy_a_server_is():
    gauges = in_sync(2)
    part(gauges, 1, busy_s=4.5, num_parts=1)
    assert (read(gauges).busy_s, read(gauges).relative_change) == (0.0, pytest.approx(0.1))
    part(gauges, 2, busy_s=0.01, num_parts=1)
    assert read(gauges).busy_s == pytest.approx(0.01)


def test_a_part_of_an_update_that_nobody_knows_is_passed_over():
    gauges = in_sync(1)
    part(gauges, 7, num_parts=1)
    assert read(gauges).relative_change is None


def test_an_update_whose_parts_never_come_is_given_up():
    gauges = in_sync(600)
    part(gauges, 1, num_parts=1)
    assert read(gauges).relative_change is None


def test_the_change_of_the_pace_before_stands_until_the_new_one_is_measured():
    gauges = in_sync(2)
    part(gauges, 1, num_parts=1)
    gauges.moved()
    assert read(gauges).relative_change == pytest.approx(0.1)
    part(gauges, 2, num_parts=1, change=0.125)
    assert read(gauges).relative_change == pytest.approx(0.05)


# --- noise scale --------------------------------------------------------------------------------------------


def synthetic(scale: NoiseScale, *, sizes: tuple[int, ...], noise_scale: float, num_folds: int, seed: int, dimensions: int = 100) -> None:
    """Gradients around (1, 0, 0, ...) whose single samples have tr(S) = noise_scale."""
    draw = random.Random(seed)
    for _ in range(num_folds):
        members: list[tuple[int, float]] = []
        mean = [0.0] * dimensions
        for size in sizes:
            sigma = math.sqrt(noise_scale / dimensions / size)
            gradient = [draw.gauss(1.0 if at == 0 else 0.0, sigma) for at in range(dimensions)]
            members.append((size, math.sqrt(sum(value * value for value in gradient))))
            mean = [total + size / sum(sizes) * value for total, value in zip(mean, gradient, strict=True)]
        scale.add(members, sum(value * value for value in mean))


@pytest.mark.parametrize(("sizes", "noise_scale"), [((16,) * 4, 64.0), ((4, 8, 16, 32), 64.0), ((32, 32), 10.0), ((8,) * 8, 300.0)])
def test_the_noise_scale_of_synthetic_gradients_is_found(sizes, noise_scale):
    scale = NoiseScale()
    synthetic(scale, sizes=sizes, noise_scale=noise_scale, num_folds=200, seed=3)
    assert scale.value == pytest.approx(noise_scale, rel=0.2)


def test_gradients_that_are_all_noise_have_no_noise_scale():
    """Half of such estimates of |G|^2 are negative: what is said then is that nothing is known."""
    scale, draw = NoiseScale(), random.Random(1)
    for _ in range(100):
        norms = [draw.gauss(1.0, 0.01) for _ in range(4)]
        scale.add([(8, norm) for norm in norms], 0.24)
    assert scale.value is None


def test_little_says_nothing_about_the_noise():
    scale = NoiseScale()
    synthetic(scale, sizes=(8, 8), noise_scale=20.0, num_folds=LEAST_FOLDS - 1, seed=1)
    assert scale.value is None


@pytest.mark.parametrize("members", [[], [(8, 1.0)], [(8, 1.0), (0, 1.0)], [(8, math.nan), (8, 1.0)]])
def test_what_cannot_measure_the_noise_is_left_out(members):
    assert not NoiseScale().add(members, 1.0)


def test_only_fresh_members_measure_the_noise_and_its_age_is_said():
    gauges = in_sync(0)
    members = [(10, math.sqrt(3.0)), (5, math.sqrt(5.0))]
    for version in range(1, 31):
        gauges.folded(version, 15, [0, 0] if version <= 10 else [0, 1], float(version), members=members, lr_factor=1.0)
        part(gauges, version, gradient=(1.0 + 20 / 15) / 2)
        part(gauges, version, gradient=(1.0 + 20 / 15) / 2)
    seen = read(gauges, version=30)
    assert seen.noise_scale == pytest.approx(20.0)
    assert seen.noise_age == 20


# --- loss and learning rate ---------------------------------------------------------------------------------


def test_the_loss_and_its_slope_are_those_of_a_known_curve():
    """log loss falls by 0.5 per 1,000 samples, exactly."""
    gauges = in_sync(0)
    for worker in range(4):
        gauges.joined(worker)
    for version in range(1, 41):
        for _ in range(4):
            gauges.logged(2.0 * math.exp(-0.5 * (version - 1) * 0.032), 8)
        gauges.folded(version, 32, [0] * 4, float(version), members=(), lr_factor=1.0)
    seen = read(gauges)
    assert seen.loss_first == pytest.approx(2.0)
    assert seen.loss_slope == pytest.approx(-0.5)
    assert seen.loss_slope_error == pytest.approx(0.0, abs=1e-6)


def test_the_slopes_error_covers_a_flat_noisy_loss():
    draw, inside = random.Random(5), 0
    for _ in range(100):
        points = [(at / 10.0, draw.gauss(0.0, 1.0)) for at in range(30)]
        slope = line_slope(points)
        inside += abs(slope.value) <= 2.0 * slope.error
    assert 88 <= inside <= 100


def test_a_loss_is_weighted_by_its_samples():
    gauges = in_sync(0)
    gauges.logged(1.0, 30)
    gauges.logged(4.0, 10)
    assert read(gauges).loss == pytest.approx((30 * (1 - 1 / 32) * 1.0 + 10 * 4.0) / (30 * (1 - 1 / 32) + 10))


def test_one_loss_that_is_not_finite_is_left_out_and_a_round_of_them_is_said():
    gauges = in_sync(1)
    gauges.logged(1.0, 8)
    gauges.logged(math.nan, 8)
    assert read(gauges).loss == pytest.approx(1.0)
    for _ in range(3):
        gauges.logged(math.inf, 8)
    assert math.isnan(read(gauges).loss or 0.0)
    gauges.logged(1.0, 8)
    assert read(gauges).loss == pytest.approx(1.0)


def test_a_loss_that_is_not_positive_has_no_slope():
    gauges = in_sync(1)
    for at in range(40):
        gauges.logged(-1.0 - at, 8)
    assert (read(gauges).loss_slope, read(gauges).loss_slope_error) == (0.0, 0.0)


def hyper(*rates: float) -> bytes:
    return msgspec.msgpack.encode([{"lr": rate, "momentum": 0.9} for rate in rates])


def warming(rates: list[float], *, more: int = 0) -> bool:
    """Whether a run warms up after updates with these learning rates and `more` with the last one."""
    gauges = in_sync(0)
    for version, rate in enumerate(rates + rates[-1:] * more, start=1):
        gauges.hyper(hyper(rate, rate))
        gauges.folded(version, 32, [0] * 4, float(version), members=(), lr_factor=1.0)
    return read(gauges).warming_up


@pytest.mark.parametrize(
    ("rates", "more", "holds"),
    [
        ([0.1] * 20, 0, False),
        ([0.01 * at for at in range(20)], 0, True),
        ([0.01 * at for at in range(20)], 10, False),
        ([0.1 + 0.01 * at for at in range(10)] + [0.05], 0, False),
        ([0.1, 0.2, 0.1999, 0.3, 0.2999], 0, True),
        ([0.1] * 10 + [0.2] * 10 + [0.3] * 5, 0, True),
        ([math.nan, 0.1, 0.2], 0, True),
    ],
    ids=["constant", "linear", "over", "fallen", "reports cross", "by epochs", "nan"],
)
def test_a_warm_up_is_a_rate_that_only_grew_and_lately(rates, more, holds):
    assert warming(rates, more=more) is holds


def test_settings_without_a_learning_rate_are_none():
    gauges = in_sync(1)
    gauges.hyper(msgspec.msgpack.encode([{"momentum": 0.9}]))
    gauges.hyper(b"")
    assert not read(gauges).warming_up


# --- whatever comes -----------------------------------------------------------------------------------------

numbers = st.floats(0.0, 1e12) | st.sampled_from([math.nan, math.inf])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4), numbers, numbers), max_size=60))
def test_whatever_the_coordinator_hears_signals_can_be_written_down_and_read_back(happenings):
    gauges, version = Gauges(), 0
    for kind, worker, first, second in happenings:
        match kind:
            case 0:
                gauges.joined(worker)
            case 1:
                gauges.left(worker)
            case 2:
                step(gauges, worker, compute_s=first, wait_s=second, exchange_s=0.0)
            case 3:
                version += 1
                gauges.folded(version, worker, [worker], float(version), members=[(worker, first), (8, second)], lr_factor=1.0)
            case 4:
                part(gauges, version, gradient=abs(first), parameters=abs(second), change=abs(first))
            case 5:
                gauges.logged(first, worker)
            case _:
                gauges.hyper(hyper(first))
    seen = read(gauges, version=version)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(seen), type=Signals).version == version
    assert all(math.isfinite(worker.compute_s) for worker in seen.workers)
    assert 0.0 <= seen.straggler_ratio <= 1.0
    assert seen.noise_scale is None or seen.noise_scale >= 0.0


def test_a_smoothed_mean_lies_between_its_values_and_forgets():
    smoothed = Smoothed(8)
    for _ in range(100):
        smoothed.add(1.0)
    for _ in range(8):
        smoothed.add(2.0)
    assert smoothed.mean is not None
    assert 1.5 < smoothed.mean < 2.0
