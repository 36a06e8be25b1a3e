"""A cluster file that says what was measured: this machine, a script on it, or the workers of a run that is over."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import tomli_w

from paceline.engine.virtual.cluster_file import read_cluster
from paceline.errors import ConfigError, WriteError
from paceline.plan.machine import Machine
from paceline.plan.profile import Profile
from paceline.trace.record import each_event, read_summary

ALIKE = 0.1
"""Neighbouring workers whose step times differ by less are one group."""
DEVIATION_OF_MAD = 1.4826
DEVIATION_OF_QUARTILES = 1.349
LITTLE_WAIT = 0.05
"""A worker that waits less takes its steps at the intervals of its gradients, whose spread is then its own."""
LEAST_STEPS = 10


class Worker(NamedTuple):
    """One worker of a run: seconds a sample, and the deviation of the logarithm of its step times where that can be seen."""

    sample_s: float
    spread: float


def machine_cluster(machine: Machine, profile: Profile | None) -> dict[str, Any]:
    """A worker on each core of one machine, servers beside them; `profile` is of a script that it is for."""
    group: dict[str, Any] = {"count": machine.cores, "per_host": machine.cores}
    if profile is not None:
        group |= _timed_as(profile.sample_s, log(profile.sample_high_s / profile.sample_low_s) / DEVIATION_OF_QUARTILES)
    about = f"Measured: one machine with {machine.cores} cores" + ("" if profile else ", and steps of 1 ms a sample, which are a guess")
    return {"about": f"{about}.", "size": machine.cores, **_within(machine), "workers": [group]}


def run_cluster(run_dir: Path, machine: Machine) -> dict[str, Any]:
    """The workers of a run that is over, on one machine that moves what this one does. Raises ConfigError."""
    summary = read_summary(run_dir)
    if not summary:
        raise ConfigError(f"{run_dir} has no summary.json, calibrate needs a run that is over")
    if summary.get("engine") == "virtual":
        raise ConfigError(f"{run_dir} was a virtual run: its cluster is {run_dir / 'cluster.toml'}, there is nothing to measure")
    workers = _workers_of(run_dir, summary)
    if not workers:
        raise ConfigError(f"{run_dir} has no worker with a folded sample and a time, calibrate needs at least one")
    lost: Sequence[object] = msgspec.convert(summary.get("lost", ()), list[int])
    groups = _grouped(workers, len(workers))
    if lost:
        wall_s = msgspec.convert(summary.get("wall_s", 0.0), float)
        groups = [group | {"mtbf": _seconds(max(1e-3, wall_s * len(workers) / len(lost)))} for group in groups]
    about = f"Measured: the {len(workers)} workers of {run_dir.name}, on one machine."
    return {"about": about, "size": len(workers), **_within(machine), "workers": groups}


def write_cluster(cluster: dict[str, Any], path: Path) -> None:
    """Write it, and read it back as any cluster file. Raises WriteError."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(tomli_w.dumps(cluster))
    except FileExistsError:
        raise ConfigError(f"--out: {path} is there already, name a file that is not") from None
    except OSError as error:
        raise WriteError(f"{path} could not be written: {error.strerror}") from error
    read_cluster(str(path))


def _within(machine: Machine) -> dict[str, Any]:
    """Within a host bulk is copied through memory and orders go through sockets; hosts apart would be at most as fast as loopback."""
    return {
        "network": {
            "bandwidth": _rate(machine.tcp_bytes_per_s),
            "latency": _seconds(machine.tcp_answer_s / 2),
            "inside_bandwidth": _rate(machine.memory_bytes_per_s),
            "inside_latency": _seconds(machine.unix_answer_s / 2),
        },
        "servers": {"hosts": "with workers"},
    }


def _workers_of(run_dir: Path, summary: dict[str, object]) -> list[Worker]:
    told = msgspec.convert(summary.get("per_worker", {}), dict[str, dict[str, float]])
    batch = _usual_batch(told)
    times_s: dict[int, list[float]] = {}
    for event in each_event(run_dir):
        if event["event"] == "update":
            for member in msgspec.convert(event["members"], list[dict[str, float]]):
                times_s.setdefault(int(member["worker"]), []).append(msgspec.convert(event["t_s"], float))
    workers: list[Worker] = []
    for number, one in sorted(told.items(), key=lambda item: int(item[0])):
        if one["steps"] and one["compute_s"] > 0:
            waits = one["wait_s"] / (one["compute_s"] + one["wait_s"])
            spread = _spread(times_s.get(int(number), [])) if waits < LITTLE_WAIT else 0.0
            workers.append(Worker(one["compute_s"] / (one["steps"] * batch), spread))
    return workers


def _usual_batch(told: dict[str, dict[str, float]]) -> float:
    """Samples a step, of all workers; refused steps have as many."""
    folded = sum(one["steps"] - one["refused"] for one in told.values())
    return max(1.0, sum(one["samples"] for one in told.values()) / max(1.0, folded))


def _spread(times_s: Sequence[float]) -> float:
    """Of the intervals' logarithms, without regard to the pauses between epochs.

    >>> _spread([float(number) for number in range(20)])
    0.0
    """
    intervals = [log(after - before) for before, after in pairwise(times_s) if after > before]
    if len(intervals) < LEAST_STEPS:
        return 0.0
    middle = median(intervals)
    return DEVIATION_OF_MAD * median(abs(one - middle) for one in intervals)


def _grouped(workers: Sequence[Worker], per_host: int) -> list[dict[str, Any]]:
    """Workers in their order, those next to each other that are alike as one group."""
    groups: list[list[Worker]] = []
    for worker in workers:
        if groups and abs(worker.sample_s / groups[-1][0].sample_s - 1.0) < ALIKE:
            groups[-1].append(worker)
        else:
            groups.append([worker])
    return [
        {
            "count": len(group),
            "per_host": per_host,
            **_timed_as(median(one.sample_s for one in group), median(one.spread for one in group)),
        }
        for group in groups
    ]


def _timed_as(sample_s: float, spread: float) -> dict[str, Any]:
    factor = {"factor": "lognormal", "spread": round(min(2.0, spread), 3)} if spread >= 0.005 else {}
    return {"compute": _seconds(sample_s), **factor}


def _seconds(value: float) -> str:
    return f"{1e6 * value:.4g} us".replace("e+0", "e").replace("e+", "e") if value < 1e-3 else f"{1e3 * value:.6g} ms".replace("e+", "e")


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.0f} MB/s"
