"""The rate of a pace that is not in force: a small simulation of its gate over the step times that workers had lately.

Event by event and without chance: quorum, distinct workers, late gradients, leads, and the servers as one queue. A step is not
interrupted, so one that is dropped has cost its time. Graces and what other processes take of the same cores are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil, gcd
from typing import NamedTuple

from paceline.logic.progress import Progress
from paceline.logic.signals import Signals
from paceline.logic.weighting import weight_of
from paceline.pace import Late, Pace, parse_pace

MOST_STEPS = 4_000
MOST_ROUNDS, LEAST_ROUNDS = 64, 4
"""A simulation takes so many steps a worker, fewer for many workers, MOST_STEPS of all of them."""
SETTLING = 0.25
"""Part of a simulation that is not counted: everybody begins at once."""
APPLY_PASSES = 6.0
"""What an optimizer moves through memory, in gradients added: parameters and its state, read and written (momentum 5, Adam 7)."""
COPY_PASSES = 2.0
"""What a worker that does not compute on the shards' own memory moves to have the parameters: read, write."""
MOST_LOAD = 0.9
"""Of a server, for the length of its queue: beyond, the formula is not one of a steady state."""


class Predicted(NamedTuple):
    """What a pace would do: `factor` is the mean weight of its gradients by their staleness."""

    samples_per_s: float
    staleness: float
    samples_per_update: float
    factor: float


class Costs(NamedTuple):
    """Seconds: of one pass over a shard, of a worker's copy of the parameters, and what else each of its exchanges takes."""

    pass_s: float
    copy_s: float
    extra_s: tuple[float, ...]

    def apply_s(self, num_gradients: int) -> float:
        """How long the busiest server works on an update of so many gradients."""
        return self.pass_s * (APPLY_PASSES + num_gradients)


def costs_of(signals: Signals) -> Costs:
    """The costs behind what was measured under the pace in force.

    What a worker waits after it may go on is the apply, where it does not read in place also the servers' queue (as for
    random arrivals and one length of service) and its copy; the rest is its own.
    """
    per_update = signals.gradients_per_s / signals.updates_per_s if signals.updates_per_s else 1.0
    pass_s = signals.busy_s / (APPLY_PASSES + per_update)
    copy_s = COPY_PASSES * pass_s * signals.num_shards
    known_s = signals.busy_s
    if not parse_pace(signals.pace).reads_in_place:
        load = min(MOST_LOAD, signals.updates_per_s * signals.busy_s)
        known_s += copy_s + signals.busy_s * load / (2.0 * (1.0 - load))
    return Costs(pass_s, copy_s, tuple(max(0.0, worker.exchange_s - known_s) for worker in signals.workers))


def walks(times: Sequence[Sequence[float]], length: int) -> list[list[float]]:
    """For each worker at least `length` step times: all of its own in every cycle, in another order each time.

    >>> walk = walks([(1.0, 2.0, 3.0, 4.0)], 8)[0]
    >>> sorted(walk[:4]), sorted(walk[4:])
    ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    """
    strides = {count: [stride for stride in range(1, count + 1) if gcd(stride, count) == 1] for count in {len(one) for one in times}}
    made: list[list[float]] = []
    for worker, own in enumerate(times):
        walk: list[float] = []
        for cycle in range(ceil(length / len(own))):
            place = _mixed(worker, cycle)
            start, stride = place % len(own), strides[len(own)][(place >> 16) % len(strides[len(own)])]
            walk += [own[(start + step * stride) % len(own)] for step in range(len(own))]
        made.append(walk)
    return made


def _mixed(worker: int, cycle: int) -> int:
    """A fixed number for each pair, near ones far apart (the finalizer of MurmurHash3)."""
    value = (worker * 0x9E3779B1 + cycle * 0x85EBCA77 + 0x165667B1) & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return value ^ (value >> 16)


class Crew:
    """The live workers as they were lately; every pace is tried on the same step times, so that only the pace differs."""

    def __init__(self, signals: Signals, num_rounds: int | None = None) -> None:
        self.num_workers = len(signals.workers)
        most = MOST_STEPS // max(1, self.num_workers)
        self.num_rounds = num_rounds or max(LEAST_ROUNDS, min(MOST_ROUNDS, most))
        self.samples = [worker.step_samples for worker in signals.workers]
        self.costs = costs_of(signals)
        self.walks = walks([worker.steps_s or (worker.compute_s,) for worker in signals.workers], self.num_rounds)

    def predict(self, pace: Pace) -> Predicted:
        """What these workers would do under `pace`."""
        return _Trial(self, pace).run()


class _Trial:
    """One simulation. A heap holds who finishes a step when; `parked` wait for their update, the blocked for the slowest."""

    def __init__(self, crew: Crew, pace: Pace) -> None:
        self.crew, self.pace = crew, pace
        quorum = pace.quorum.of(crew.num_workers)
        self.quorum = max(1, min(quorum, crew.num_workers)) if pace.distinct else quorum
        self.copy_s = 0.0 if pace.reads_in_place else crew.costs.copy_s
        self.version = 0
        self.applied_s = 0.0
        self.base = [0] * crew.num_workers
        self.taken = [0] * crew.num_workers
        self.pending: list[int] = []
        self.progress = Progress()
        self.samples = self.staleness = self.weight = 0.0
        self.num_gradients = self.num_updates = 0
        # everybody is somewhere in a first step, not all at its beginning
        self.heap = [
            (walk[0] * (worker + 1) / crew.num_workers + crew.costs.extra_s[worker], worker) for worker, walk in enumerate(crew.walks)
        ]
        heapify(self.heap)
        for worker in range(crew.num_workers):
            self.progress.enter(worker)

    def run(self) -> Predicted:
        """Step until enough steps were taken; the first part and what follows the last update are not counted."""
        most = self.crew.num_rounds * self.crew.num_workers
        begun_s = ended_s = 0.0
        begun = False
        for step in range(4 * most):
            if not self.heap:
                break
            now_s, worker = heappop(self.heap)
            if not self._finish(worker, now_s):
                continue
            if not begun and step >= SETTLING * most:
                begun, begun_s = True, now_s
                self.samples = self.staleness = self.weight = 0.0
                self.num_gradients = self.num_updates = 0
            ended_s = now_s
            if step >= most and self.num_updates:
                break
        if not self.num_gradients or ended_s <= begun_s:
            return Predicted(0.0, 0.0, 0.0, 1.0)
        return Predicted(
            self.samples / (ended_s - begun_s),
            self.staleness / self.num_gradients,
            self.samples / self.num_updates,
            self.weight / self.num_gradients,
        )

    def _finish(self, worker: int, now_s: float) -> bool:
        """A worker's gradient arrives; returns whether that made an update."""
        pace, age = self.pace, self.version - self.base[worker]
        if pace.max_lead is not None:
            self.progress.answered(worker)
        stale = pace.max_staleness is not None and age > pace.max_staleness
        if stale or (age and pace.late is Late.DROP):
            self._go_on(worker, now_s)
            return False
        self.pending.append(worker)
        if len(self.pending) >= self.quorum:
            members = self._fold(now_s)
            for member in members if pace.distinct else (worker,):
                self._go_on(member, now_s)
            return True
        if not pace.distinct:
            self._go_on(worker, now_s)
        return False

    def _fold(self, now_s: float) -> list[int]:
        members, self.pending = self.pending, []
        for worker in members:
            age = self.version - self.base[worker]
            self.samples += self.crew.samples[worker]
            self.staleness += age
            self.weight += weight_of(self.pace, age, num_live=self.crew.num_workers)
        self.num_gradients += len(members)
        self.num_updates += 1
        self.version += 1
        self.applied_s = max(self.applied_s, now_s) + self.crew.costs.apply_s(len(members))
        return members

    def _go_on(self, worker: int, now_s: float) -> None:
        """`worker` starts its next step unless it is too far ahead; whoever it held back starts too."""
        max_lead = self.pace.max_lead
        if max_lead is None:
            self._start(worker, now_s)
            return
        if self.progress.lead(worker) > max_lead:
            self.progress.block(worker, max_lead)
        else:
            self._start(worker, now_s)
        for freed in self.progress.unblocked():
            self._start(freed, now_s)

    def _start(self, worker: int, now_s: float) -> None:
        walk = self.crew.walks[worker]
        self.taken[worker] += 1
        self.base[worker] = self.version
        begin_s = max(now_s, self.applied_s) + self.copy_s + self.crew.costs.extra_s[worker]
        heappush(self.heap, (begin_s + walk[self.taken[worker] % len(walk)], worker))
