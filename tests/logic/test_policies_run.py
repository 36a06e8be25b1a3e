"""Policies in the loop: made-up workers under the real gate, measured by the gauges, moved by the policy, held by the dwell."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import pairwise
from statistics import median

import pytest

from paceline.hybrid import Hybrid, parse_mode
from paceline.logic.gate import Crowd, admit, fold_due, may_start
from paceline.logic.gauges import Gauges
from paceline.logic.policies.catalogue import policy_of
from paceline.logic.policies.policy import Move
from paceline.logic.progress import Progress
from paceline.logic.safety import may_move
from paceline.pace import Pace, parse_pace

SAMPLES = 16
STEP_S, EXCHANGE_S = 0.1, 0.004
EVALUATED_EVERY = 10
"""Rounds, of as many gradients as workers."""

Slowness = Callable[[int, float], float]


class MadeUpRun:
    """`num_workers` whose steps take STEP_S times `slowness(worker, share)` and noise, until `total` samples are folded."""

    def __init__(self, mode: str, slowness: Slowness, *, num_workers: int = 4, total: int = 30_000, seed: int = 0, spread: float = 0.05):
        told = parse_mode(mode)
        self.policy = policy_of(told) if isinstance(told, Hybrid) else None
        self.pace: Pace = told.start if isinstance(told, Hybrid) else told
        self.slowness, self.num_workers, self.total, self.spread = slowness, num_workers, total, spread
        self.draw = random.Random(seed)
        self.gauges, self.progress = Gauges(), Progress()
        self.now_s, self.version, self.samples, self.num_gradients = 0.0, 0, 0, 0
        self.base = [0] * num_workers
        self.pushed_s = [0.0] * num_workers
        self.step_s = [0.0] * num_workers
        self.begun_s = [0.0] * num_workers
        self.pending: list[int] = []
        self.waiting: set[int] = set()
        self.heap: list[tuple[float, int]] = []
        self.moves: list[Move] = []
        self.marks = [(0.0, 0)]
        self.gauges.planned(total)
        for worker in range(num_workers):
            self.gauges.joined(worker)
            self.progress.enter(worker)

    def run(self) -> MadeUpRun:
        for worker in range(self.num_workers):
            self.start(worker)
        while self.samples < self.total:
            self.now_s, worker = heappop(self.heap)
            self.arrive(worker)
        self.marks.append((self.now_s, self.samples))
        return self

    def start(self, worker: int) -> None:
        if not may_start(self.pace, lead=self.progress.lead(worker), has_pending=worker in self.pending, max_lead=self.pace.max_lead).ok:
            self.waiting.add(worker)
            return
        self.waiting.discard(worker)
        self.base[worker] = self.version
        self.begun_s[worker] = self.now_s + EXCHANGE_S
        self.step_s[worker] = STEP_S * self.slowness(worker, self.samples / self.total) * self.draw.lognormvariate(0.0, self.spread)
        heappush(self.heap, (self.begun_s[worker] + self.step_s[worker], worker))

    def arrive(self, worker: int) -> None:
        waited_s = self.begun_s[worker] - self.pushed_s[worker]
        self.gauges.stepped(
            worker, compute_s=self.step_s[worker], wait_s=waited_s, exchange_s=EXCHANGE_S, samples=SAMPLES, now_s=self.now_s
        )
        self.pushed_s[worker] = self.now_s
        self.progress.answered(worker)
        if admit(self.pace, norm=1.0, base=self.base[worker], version=self.version).ok:
            self.pending.append(worker)
        crowd = Crowd(self.num_workers, self.num_workers, computing=len(self.heap))
        if fold_due(self.pace, len(self.pending), crowd).ok:
            self.fold()
        self.start(worker)
        for other in sorted(self.waiting):
            self.start(other)

    def fold(self) -> None:
        stalenesses = [self.version - self.base[worker] for worker in self.pending]
        self.version += 1
        self.samples += SAMPLES * len(self.pending)
        self.gauges.folded(self.version, SAMPLES * len(self.pending), stalenesses, self.now_s, members=(), lr_factor=1.0)
        self.num_gradients += len(self.pending)
        self.pending.clear()
        if self.policy is not None and self.num_gradients >= EVALUATED_EVERY * self.num_workers:
            self.num_gradients = 0
            self.evaluate()

    def evaluate(self) -> None:
        assert self.policy is not None
        seen = self.gauges.read(self.pace.name, self.version, num_at_start=self.num_workers, now_s=self.now_s, scales_gradients=True)
        decision = self.policy.decide(seen, tuple(self.moves))
        if decision.pace is None or (self.policy.judges and not may_move(seen, self.moves).ok):
            return
        self.moves.append(
            Move(self.version, self.samples, seen.share, self.pace.name, decision.pace.name, decision.why, predicted=decision.predicted)
        )
        self.marks.append((self.now_s, self.samples))
        self.pace = decision.pace
        self.gauges.moved()
        self.progress.reset()

    def errors(self) -> list[float]:
        """Of each move's predicted rate, against what came until the next one."""
        spans = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(self.marks[1:])]
        return [
            abs(span_s * move.predicted - samples) / samples
            for move, (span_s, samples) in zip(self.moves, spans, strict=True)
            if move.predicted is not None and samples >= 20 * SAMPLES * self.num_workers
        ]


def even(worker: int, share: float) -> float:
    return 1.0


def one_slow(worker: int, share: float) -> float:
    return 4.0 if worker == 3 else 1.0


def slow_in_the_middle(worker: int, share: float) -> float:
    return 3.0 if worker == 3 and 1 / 3 <= share < 2 / 3 else 1.0


def seconds(mode: str, slowness: Slowness, **more) -> float:
    return MadeUpRun(mode, slowness, **more).run().now_s


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.1, 0.5])
def test_with_even_workers_hybrid_takes_no_longer_than_sync(spread):
    assert seconds("hybrid", even, spread=spread) <= 1.05 * seconds("sync", even, spread=spread)


def test_with_one_worker_four_times_slower_hybrid_takes_at_most_055_of_sync():
    assert seconds("hybrid", one_slow) <= 0.55 * seconds("sync", one_slow)


@pytest.mark.parametrize("mode", ["hybrid", "hybrid:stragglers"])
def test_with_a_straggler_in_the_middle_third_a_run_that_moves_is_faster_than_sync(mode):
    assert seconds(mode, slow_in_the_middle) <= 0.8 * seconds("sync", slow_in_the_middle)


def test_a_passing_straggler_is_left_out_and_nobody_goes_async_before_its_time():
    run = MadeUpRun("hybrid:goodput:1", slow_in_the_middle).run()
    assert [move.after for move in run.moves] == ["backup:1", "sync"]
    assert 0.33 <= (run.moves[0].share or 0.0) <= 0.40
    assert 0.66 <= (run.moves[1].share or 0.0) <= 0.75


@pytest.mark.parametrize("slowness", [one_slow, slow_in_the_middle])
@pytest.mark.parametrize("num_workers", [4, 8])
def test_predicted_rates_come_true(slowness, num_workers):
    errors = [
        error
        for mode in ("hybrid", "hybrid:goodput:0.5", "hybrid:goodput:1")
        for seed in range(3)
        for error in MadeUpRun(mode, slowness, num_workers=num_workers, seed=seed, spread=0.2, total=6_000 * num_workers).run().errors()
    ]
    assert len(errors) >= 9
    assert median(errors) <= 0.1


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("mode", ["hybrid", "hybrid:stragglers", "hybrid:syncswitch"])
def test_a_run_of_even_noisy_workers_does_not_flap(mode, spread):
    run = MadeUpRun(mode, even, spread=spread).run()
    assert len(run.moves) <= 2


def test_a_schedule_moves_where_it_says():
    run = MadeUpRun("hybrid:sync@0,ssp:3@0.25,async@0.5", even).run()
    assert [move.after for move in run.moves] == ["ssp:3", "async"]
    assert [move.share for move in run.moves] == pytest.approx([0.25, 0.5], abs=0.03)


def test_dssp_changes_no_pace():
    run = MadeUpRun("dssp:1:6", one_slow, total=5_000).run()
    assert run.moves == []
    assert run.pace == parse_pace("ssp:1")
