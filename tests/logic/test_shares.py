"""Batch shares: they find the workers' speeds, stay put in noise, and cut a batch into whole pieces."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.logic.shares import DEADBAND, LEAST_PART, LEAST_STEP, MOST_STEP, next_parts, pieces

BATCH = 256
Cost = Callable[[int, float], float]
SECONDS = st.dictionaries(st.integers(0, 40), st.floats(1e-6, 10.0), min_size=1, max_size=12)


def even(num_workers: int) -> dict[int, float]:
    return dict.fromkeys(range(num_workers), 1 / num_workers)


def play(cost: Cost, num_workers: int, rounds: int) -> list[dict[int, float]]:
    """The parts after each of `rounds` measurements; a step of `n` samples takes worker `w` `cost(w, n)` seconds."""
    parts, step, before = even(num_workers), MOST_STEP, None
    seen = [parts]
    for _ in range(rounds):
        measured = {worker: cost(worker, part * BATCH) / (part * BATCH) for worker, part in parts.items()}
        after, step = next_parts(measured, parts, step, before)
        before, parts = (parts, after) if after is not parts else (before, parts)
        seen.append(parts)
    return seen


def spread(cost: Cost, parts: dict[int, float]) -> float:
    """The slowest step over the fastest."""
    times = [cost(worker, part * BATCH) for worker, part in parts.items()]
    return max(times) / min(times)


def test_parts_go_to_the_speeds_without_passing_them():
    seen = play(lambda worker, samples: samples * (3.0 if worker == 1 else 1.0), 4, 12)
    slow = [parts[1] for parts in seen]
    assert slow == sorted(slow, reverse=True)
    assert slow[-1] == pytest.approx(0.1, rel=DEADBAND)
    assert slow[-1] == slow[-2]
    assert all(sum(parts.values()) == pytest.approx(1.0) for parts in seen)


def test_a_fixed_cost_a_step_ends_in_steps_that_last_equally_long():
    def cost(worker: int, samples: float) -> float:
        return 20.0 + samples * (3.0 if worker == 1 else 1.0)

    assert spread(cost, play(cost, 4, 40)[-1]) < 1.0 + 2.5 * DEADBAND


def test_noise_of_a_few_percent_moves_nothing():
    chance = random.Random(1)
    seen = play(lambda worker, samples: samples * chance.uniform(0.98, 1.02), 4, 200)
    assert all(parts is seen[0] for parts in seen)


def test_parts_that_turn_back_move_by_half_as_much_each_time():
    slow_one, step, steps = 0, MOST_STEP, []
    parts, before = even(2), None
    for _ in range(8):
        after, step = next_parts({worker: 4.0 if worker == slow_one else 1.0 for worker in parts}, parts, step, before)
        steps.append(step)
        before, parts, slow_one = parts, after, 1 - slow_one
    assert steps == [0.5, 0.25, 0.125, LEAST_STEP, *[LEAST_STEP] * 4]
    assert abs(parts[0] - 0.5) < 0.1
    same_way = [step := next_parts({0: 4.0, 1: 1.0}, {0: 0.5, 1: 0.5}, step, {0: 0.6, 1: 0.4})[1] for _ in range(4)]
    assert same_way == [0.125, 0.25, 0.5, MOST_STEP]


def test_nobody_is_starved_and_who_has_no_part_yet_is_taken_as_even():
    seen = play(lambda worker, samples: samples * (1e6 if worker == 1 else 1.0), 4, 60)
    assert min(parts[1] for parts in seen) >= LEAST_PART / 4
    joined, _ = next_parts({0: 1.0, 1: 1.0, 7: 1.0}, {0: 0.5, 1: 0.5}, MOST_STEP)
    assert joined == pytest.approx({0: 1 / 3, 1: 1 / 3, 7: 1 / 3})
    left, _ = next_parts({0: 1.0, 1: 1.0}, {0: 0.4, 1: 0.4, 2: 0.2}, MOST_STEP)
    assert left == pytest.approx({0: 0.5, 1: 0.5})
    assert next_parts({}, {}, MOST_STEP) == ({}, MOST_STEP)


@given(SECONDS, SECONDS, st.floats(LEAST_STEP, MOST_STEP))
@settings(max_examples=300, deadline=None)
def test_parts_always_add_up_and_never_starve(seconds, weights, step):
    parts, _ = next_parts(seconds, {worker: weight / sum(weights.values()) for worker, weight in weights.items()}, step)
    if parts.keys() != weights.keys():
        assert sum(parts.values()) == pytest.approx(1.0)
        assert min(parts.values()) >= LEAST_PART / len(parts) * (1 - 1e-9)
    assert parts.keys() == seconds.keys()


@given(st.integers(0, 300), SECONDS)
@settings(max_examples=400, deadline=None)
def test_pieces_add_up_to_the_batch_and_follow_the_parts(num_samples, parts):
    sizes = pieces(num_samples, parts)
    assert sum(sizes.values()) == num_samples
    assert min(sizes.values(), default=1) >= 1
    assert len(sizes) == min(len(parts), num_samples)
    quotas = {worker: num_samples * part / sum(parts.values()) for worker, part in parts.items()}
    if num_samples >= len(parts) and min(quotas.values()) >= 1.0:
        assert all(abs(size - quotas[worker]) < 1.0 + 1e-6 for worker, size in sizes.items())
