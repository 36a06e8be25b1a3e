"""Targets, when a metric meets them, what a short pilot says of a long run, and who can be told from whom."""

from __future__ import annotations

import random
from math import exp, log

import pytest

from paceline.errors import ConfigError
from paceline.plan.progress import Logged, Point, best, crossing, points_of
from paceline.plan.ranking import Arrival, ranks, seen, stretched
from paceline.plan.target import Target, Wish, parse_target

ACCURATE = Target("accuracy", 0.9, rising=True)


def learning(scale: float, end: float, *, step: float = 100.0, noise: float = 0.0, seed: int = 0) -> list[Point]:
    """An accuracy that comes to 1 - 1/e after `scale` samples, as far as `end`."""
    chance = random.Random(seed)
    places = [step * number for number in range(int(end / step) + 1)]
    return [Point(place, place / 1000, 1.0 - exp(-place / scale) + chance.gauss(0.0, noise)) for place in places]


@pytest.mark.parametrize("text", ["accuracy", "accuracy=", "=0.9", "accuracy=high", "accuracy=nan", "loss<0.1", ""])
def test_a_target_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a target, write METRIC=VALUE"):
        parse_target(text)


@pytest.mark.parametrize(("first", "rising"), [(0.1, True), (0.95, False), (None, True)])
def test_a_target_rises_when_the_metric_begins_below_it(first: float | None, rising: bool) -> None:
    assert parse_target("accuracy=0.9").from_start(first) == Target("accuracy", 0.9, rising)


def test_a_target_with_a_sign_needs_no_guess() -> None:
    assert parse_target(" test loss <= 0.2") == Wish("test loss", 0.2, rising=False)
    assert parse_target("accuracy>=0.9").from_start(0.95).rising


def test_a_few_values_stay_as_they_are_and_many_become_their_means() -> None:
    few = [Logged(1000 * number, float(number), 0.1 * number, 1.0) for number in range(1, 6)]
    assert [point.value for point in points_of(few, 60_000)] == [one.value for one in few]
    many = [Logged(10 * number, number / 10, float(number % 2), 10.0) for number in range(1, 6001)]
    points = points_of(many, 60_000)
    assert len(points) == 60
    assert {point.value for point in points} == {0.5}
    assert sum(point.samples for point in points) / 60 == pytest.approx(30_005)


def test_a_mean_counts_the_samples_behind_each_value() -> None:
    logged = [Logged(100, 1.0, 1.0, 30.0), Logged(100, 1.0, 0.0, 10.0)] * 100
    assert points_of(logged, 6000)[0].value == pytest.approx(0.75)


def test_the_crossing_lies_on_the_line_between_two_values() -> None:
    line = [Point(0.0, 0.0, 3.0), Point(100.0, 2.0, 2.0), Point(200.0, 4.0, 1.0)]
    found = crossing(line, Target("loss", 1.25, rising=False))
    assert found is not None
    assert (found.samples, found.t_s, found.error) == (175.0, 3.5, 25.0)
    assert crossing(line, Target("loss", 0.5, rising=False)) is None
    assert best(line, rising=False) == 1.0


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.7, 3.0])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_pilot_of_a_third_tells_where_the_whole_run_arrives(factor: float, noise: float) -> None:
    """The truth: the target is met after `scale * log(10)` samples."""
    scale = 2000.0
    shape, inside = learning(scale, 3 * scale, noise=noise), 0
    for seed in range(1, 6):
        need = stretched(learning(factor * scale, 0.33 * factor * scale * log(10), noise=noise, seed=seed)[1:], shape, ACCURATE)
        assert need is not None
        assert not need.is_seen
        assert need.samples == pytest.approx(factor * scale * log(10), rel=0.03 if not noise else 0.2)
        inside += need.low <= factor * scale * log(10) <= need.high
    assert inside >= (4 if noise else 5)


def test_values_that_the_shape_never_had_tell_nothing() -> None:
    shape = [Point(100.0, 1.0, 0.5), Point(200.0, 2.0, 0.95)]
    assert stretched([Point(100.0, 1.0, 0.1)], shape, ACCURATE) is None
    assert stretched([], shape, ACCURATE) is None


def test_a_run_that_stopped_late_is_not_said_to_have_arrived_before() -> None:
    need = stretched(learning(2000.0, 1000.0)[1:], [*learning(200.0, 1000.0)], ACCURATE)
    assert need is not None
    assert need.low >= 1000.0


def arrival(time_s: float, error_s: float, *, is_planned: bool = True) -> Arrival:
    return Arrival(1.0, time_s, time_s - error_s, time_s + error_s, is_seen=True, is_planned=is_planned)


def test_who_cannot_be_told_apart_shares_a_place() -> None:
    assert ranks([arrival(30, 1), arrival(10, 1), arrival(11.5, 1), arrival(20, 9.5)]) == [3, 1, 1, 1]


def test_who_needs_a_longer_run_comes_after_the_others_and_who_never_came_last() -> None:
    assert ranks([None, arrival(5, 1, is_planned=False), arrival(50, 1)]) == [3, 2, 1]
    assert ranks([None, None]) == [1, 1]


def test_the_soonest_has_the_first_place() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        every = [arrival(chance.uniform(1, 10), chance.uniform(0, 3)) for _ in range(6)]
        places = ranks(every)
        assert places[min(range(6), key=lambda i: every[i].time_s)] == 1


def test_what_was_seen_is_as_sure_as_its_values_are_near() -> None:
    line = learning(2000.0, 6000.0, step=1000.0)
    crossed = crossing(line, ACCURATE)
    assert crossed is not None
    need = seen(crossed)
    assert need.is_seen
    assert need.low < 2000.0 * log(10) < need.high
    assert 250.0 <= need.high - need.samples <= 500.0
