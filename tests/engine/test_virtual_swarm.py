"""Swarms: the real roles on random clusters with failures, joins and changes of pace, under all laws after every event."""

from __future__ import annotations

import pytest

from roles.test_mutants import MUTANTS
from stores import Violation
from swarm import swarm

CHUNK = 50
MOST_SEEDS = 1000

PAST = {
    21336: "a server that is busy is told of a death before it has taken the last pull",
    30302: "a worker that is let go comes to rest, which lets another one go",
    44641: "a late joiner is lost in an epoch that nobody trains any more, since the run was stopped",
}


@pytest.mark.parametrize("first", range(0, 200, CHUNK))
def test_the_laws_hold_in_two_hundred_swarms(first: int) -> None:
    for seed in range(first, first + CHUNK):
        swarm(seed)


@pytest.mark.parametrize("seed", PAST)
def test_a_swarm_that_once_went_wrong_goes_well(seed: int) -> None:
    swarm(seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(10_000, 20_000, 1000))
def test_the_laws_hold_in_ten_thousand_more_swarms(first: int) -> None:
    for seed in range(first, first + 1000):
        swarm(seed)


def test_a_swarm_is_the_same_for_the_same_seed() -> None:
    first, second = swarm(7), swarm(7)
    assert first.events == second.events
    assert first.job.timeline.num_events == second.job.timeline.num_events


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_laws_notice_on_a_cluster_too_when(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            swarm(seed)
        except (Violation, AssertionError, KeyError):  # some mistakes make the roles themselves stumble
            return
    pytest.fail(f"{MOST_SEEDS} swarms went well although {mutant}")
