"""What the directory of a run says of its workers: how fast each computes, where it is, and who was lost.

A run that is over has a summary; of one that still runs, what its policy saw last tells, or the intervals between gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from paceline.errors import ConfigError
from paceline.trace.record import each_decision, each_event, read_summary

DEVIATION_OF_MAD = 1.4826
LITTLE_WAIT = 0.05
"""A worker that waits less takes its steps at the intervals of its gradients, whose spread is then its own."""
LEAST_STEPS = 10


class Worker(NamedTuple):
    """One worker of a run: seconds a sample, and the deviation of the logarithm of its step times where that can be seen."""

    sample_s: float
    spread: float


class Seen(NamedTuple):
    """A run so far. `workers` are those that have computed, `per_host` the most of them on one host of `num_hosts`.

    `waits_count`: nothing tells what workers compute apart from what they wait, so their times are both.
    """

    workers: list[Worker]
    wall_s: float
    num_lost: int
    per_host: int
    num_hosts: int
    is_over: bool
    waits_count: bool


class _Events(NamedTuple):
    """`gradients`: when those of each worker were folded; `samples` of all of them."""

    gradients: dict[int, list[float]]
    samples: int
    hosts: dict[int, str]
    lost: set[int]
    wall_s: float


def seen_run(run_dir: Path) -> Seen:
    """Read it. Raises ConfigError when it is no run that can be measured."""
    summary = read_summary(run_dir)
    if summary.get("engine") == "virtual":
        raise ConfigError(f"{run_dir} was a virtual run: its cluster is {run_dir / 'cluster.toml'}, there is nothing to measure")
    events = _read_events(run_dir)
    per_host = Counter(events.hosts.values())
    told = msgspec.convert(summary.get("per_worker", {}), dict[str, dict[str, float]])
    waits_count = False
    if told:
        workers = _by_summary(told, events)
    else:
        workers = _by_signals(run_dir)
        if not workers:
            workers, waits_count = _by_intervals(events), True
    if not workers:
        raise ConfigError(f"{run_dir} has no worker with a folded sample and a time, calibrate needs at least one")
    lost: Sequence[int] = msgspec.convert(summary.get("lost", sorted(events.lost)), list[int])
    wall_s = msgspec.convert(summary.get("wall_s", events.wall_s), float)
    most = max(per_host.values(), default=len(workers))
    return Seen(workers, wall_s, len(lost), most, max(1, len(per_host)), bool(summary), waits_count)


def _read_events(run_dir: Path) -> _Events:
    gradients, hosts, lost, samples, last_s = dict[int, list[float]](), dict[int, str](), set[int](), 0, 0.0
    for event in each_event(run_dir):
        last_s = msgspec.convert(event["t_s"], float)
        match event:
            case {"event": "update"}:
                samples = msgspec.convert(event.get("samples", 0), int)
                for member in msgspec.convert(event["members"], list[dict[str, float]]):
                    gradients.setdefault(int(member["worker"]), []).append(last_s)
            case {"event": "join", "role": "worker", "id": int(worker), "host": str(host)}:
                hosts[worker] = host
            case {"event": "leave", "role": "worker", "id": int(worker), "reason": reason} if reason != "done":
                lost.add(worker)
            case _:
                pass
    first_s = min((times[0] for times in gradients.values()), default=last_s)
    return _Events(gradients, samples, hosts, lost, last_s - first_s)


def _by_summary(told: Mapping[str, Mapping[str, float]], events: _Events) -> list[Worker]:
    batch = _usual_batch(told)
    workers: list[Worker] = []
    for number, one in sorted(told.items(), key=lambda item: int(item[0])):
        if one["steps"] and one["compute_s"] > 0:
            waits = one["wait_s"] / (one["compute_s"] + one["wait_s"])
            spread = spread_of(_intervals(events.gradients.get(int(number), []))) if waits < LITTLE_WAIT else 0.0
            workers.append(Worker(one["compute_s"] / (one["steps"] * batch), spread))
    return workers


def _usual_batch(told: Mapping[str, Mapping[str, float]]) -> float:
    """Samples a step, of all workers; refused steps have as many."""
    folded = sum(one["steps"] - one["refused"] for one in told.values())
    return max(1.0, sum(one["samples"] for one in told.values()) / max(1.0, folded))


class _SeenWorker(msgspec.Struct):
    id: int
    compute_s: float
    step_samples: float
    steps_s: tuple[float, ...] = ()


class _SeenSignals(msgspec.Struct):
    workers: tuple[_SeenWorker, ...] = ()


def _by_signals(run_dir: Path) -> list[Worker]:
    """As the policy saw them at its last decision."""
    seen: _SeenSignals = _SeenSignals()
    for row in each_decision(run_dir):
        if row.get("event") == "decision":
            seen = msgspec.convert(row["signals"], _SeenSignals)
    return [
        Worker(one.compute_s / one.step_samples, spread_of(one.steps_s))
        for one in sorted(seen.workers, key=lambda one: one.id)
        if one.compute_s > 0.0 and one.step_samples > 0.0
    ]


def _by_intervals(events: _Events) -> list[Worker]:
    """From gradient to gradient, whatever was waited between them; steps are of the mean number of samples."""
    batch = events.samples / max(1, sum(len(times) for times in events.gradients.values()))
    spans = {worker: _intervals(times) for worker, times in sorted(events.gradients.items())}
    return [Worker(median(intervals) / batch, spread_of(intervals)) for intervals in spans.values() if intervals and batch]


def _intervals(times_s: Iterable[float]) -> list[float]:
    return [after - before for before, after in pairwise(times_s) if after > before]


def spread_of(intervals_s: Sequence[float]) -> float:
    """The deviation of their logarithms, without regard to the pauses between epochs.

    >>> spread_of([1.0] * 20)
    0.0
    """
    logs = [log(interval) for interval in intervals_s if interval > 0.0]
    if len(logs) < LEAST_STEPS:
        return 0.0
    middle = median(logs)
    return DEVIATION_OF_MAD * median(abs(one - middle) for one in logs)
