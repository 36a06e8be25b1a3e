"""Axes: whatever a script logs, the ticks are few, round, in order and told apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.dash.curve import Curve
from paceline.dash.figures import value_scale

_values = st.floats(-1e99, 1e99).filter(lambda value: value == 0 or abs(value) > 1e-99)


@given(st.lists(_values, min_size=1, max_size=5))
def test_an_axis_holds_its_values_between_its_ends(values: list[float]) -> None:
    scale = value_scale(values)
    assert all(-1e-6 <= scale.place(value) <= 1 + 1e-6 for value in values)


@given(st.lists(_values, min_size=1, max_size=5))
def test_ticks_are_few_and_in_order_and_labelled_apart(values: list[float]) -> None:
    ticks = value_scale(values).ticks(5)
    places, labels = [tick.place for tick in ticks], [tick.label for tick in ticks]
    assert places == sorted(set(places))
    assert len(set(labels)) == len(labels)
    assert len(ticks) <= 16


def test_an_axis_begins_at_zero_unless_all_values_are_far_from_it() -> None:
    assert [tick.label for tick in value_scale([0.91, 0.979]).ticks(5)] == ["0.90", "0.92", "0.94", "0.96", "0.98"]
    assert [tick.label for tick in value_scale([0.02, 2.3]).ticks(5)] == ["0", "0.5", "1.0", "1.5", "2.0", "2.5"]


def test_a_diverged_value_is_counted_and_does_not_reach_the_axis() -> None:
    curve = Curve("loss")
    for value in (1.0, 1e300, float("inf"), 1e-310, 2.0):
        curve.add(1.0, 1.0, value)
    assert curve.num_lost == 2
    assert [point.value for point in curve.points(10)] == [1.0, 0.0, 2.0]


def test_a_smoothed_curve_keeps_its_extremes_when_it_is_thinned() -> None:
    curve = Curve("loss")
    for index in range(1000):
        curve.add(index, index, 100.0 if index == 577 else 1.0)
    points = curve.points(50)
    assert len(points) == 50
    assert max(point.high for point in points) == 100.0
    assert points[0].value == 1.0
    assert points[-1].wall_s == 999
