"""Which buckets leave while a gradient is made: what is learned, what is forgotten, and when a guess is a miss."""

from __future__ import annotations

from paceline.logic.early import STEPS_REMEMBERED, Early

LAST, FIRST = (64, 128), (0, 64)


def passes(early: Early, times: int) -> list[int]:
    """So many backward passes; how many buckets have left behind each write."""
    left: list[int] = []
    for _ in range(times):
        for span in (LAST, FIRST):
            early.written(*span)
            while early.is_due:
                early.leave()
            left.append(early.num_left)
    return left


def step(early: Early, times: int = 1) -> list[int]:
    """One step of so many passes, summed."""
    left = passes(early, times)
    early.stepped()
    early.summed()
    return left


def test_buckets_leave_behind_the_pass_that_is_usually_the_last() -> None:
    early = Early([LAST, FIRST])
    assert step(early, 2) == [0, 0, 0, 0]
    assert step(early, 2) == [0, 0, 1, 2]


def test_a_shorter_accumulation_teaches_nothing_and_sums_at_the_step() -> None:
    early = Early([LAST, FIRST])
    step(early, 3)
    assert step(early, 1) == [0, 0]
    assert step(early, 3) == [0, 0, 0, 0, 1, 2]


def test_an_odd_step_is_forgotten() -> None:
    early = Early([LAST, FIRST])
    for _ in range(2):
        step(early)
    passes(early, 2)
    assert early.is_missed
    early.stepped()
    early.summed()
    waited = [step(early) for _ in range(STEPS_REMEMBERED)]
    assert waited[:-1] == [[0, 0]] * (STEPS_REMEMBERED - 1)
    assert step(early) == [1, 2]


def test_what_an_abandoned_pass_wrote_counts_in_no_step() -> None:
    early = Early([LAST, FIRST])
    step(early)
    early.written(*LAST)
    early.abandoned()
    assert not early.is_missed
    assert step(early) == [1, 2]


def test_what_an_abandoned_pass_has_sent_is_a_miss() -> None:
    early = Early([LAST, FIRST])
    step(early)
    early.written(*LAST)
    assert early.is_due
    early.leave()
    early.abandoned()
    assert early.is_missed
    assert passes(early, 1) == [1, 1]
    early.stepped()
    early.summed()
    assert step(early) == [1, 2]
