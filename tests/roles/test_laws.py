"""The invariants of a job over random worlds: what arrives when, who joins, who dies, what the pace becomes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from randomworlds import play

CHUNK = 125


@pytest.mark.parametrize("first", range(0, 1000, CHUNK))
def test_the_laws_hold_in_a_thousand_random_worlds(first):
    for seed in range(first, first + CHUNK):
        play(seed)


@pytest.mark.parametrize("seed", [100_822, 106_070, 106_910, 107_903, 110_349])
def test_the_laws_hold_in_worlds_that_broke_one_before(seed):
    play(seed)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(2**32, 2**63))
def test_the_laws_hold_in_worlds_that_hypothesis_picks(seed):
    play(seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", [1000, *range(100_000, 120_000, 1000)])
def test_the_laws_hold_in_twenty_thousand_more_worlds(first):
    for seed in range(first, first + 1000):
        play(seed)


def test_a_world_is_the_same_for_the_same_seed():
    first, second = play(42), play(42)
    assert first.events == second.events
    assert first.num_events == second.num_events
