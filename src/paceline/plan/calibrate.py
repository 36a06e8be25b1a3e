"""A cluster file that says what was measured: this machine, a script on it, or the workers of a run."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import tomli_w

from paceline.engine.virtual.cluster_file import read_cluster
from paceline.errors import ConfigError, WriteError
from paceline.plan.machine import Machine
from paceline.plan.profile import Profile
from paceline.plan.seen import Worker, seen_run

ALIKE = 0.1
"""Neighbouring workers whose step times differ by less are one group."""
DEVIATION_OF_QUARTILES = 1.349


def machine_cluster(machine: Machine, profile: Profile | None) -> dict[str, Any]:
    """A worker on each core of one machine, servers beside them; `profile` is of a script that it is for."""
    group: dict[str, Any] = {"count": machine.cores, "per_host": machine.cores}
    if profile is not None:
        group |= timed_as(profile.sample_s, log(profile.sample_high_s / profile.sample_low_s) / DEVIATION_OF_QUARTILES)
    about = f"Measured: one machine with {machine.cores} cores" + ("" if profile else ", and steps of 1 ms a sample, which are a guess")
    return {"about": f"{about}.", "size": machine.cores, **_within(machine), "workers": [group]}


def run_cluster(run_dir: Path, machine: Machine) -> dict[str, Any]:
    """The workers of a run, over or not, on machines that move what this one does. Raises ConfigError."""
    seen = seen_run(run_dir)
    groups = _grouped(seen.workers, seen.per_host)
    if seen.num_lost:
        mtbf = seconds_text(max(1e-3, seen.wall_s * len(seen.workers) / seen.num_lost))
        groups = [group | {"mtbf": mtbf} for group in groups]
    where = "one machine" if seen.num_hosts == 1 else f"{seen.num_hosts} machines, with a network that was not measured"
    about = f"Measured: the {len(seen.workers)} workers of {run_dir.name}, on {where}"
    about += "" if seen.is_over else "; it has no summary, so it is still running, and this is how it was until now"
    about += "; times are with waits, since it does not tell them apart yet" if seen.waits_count else ""
    return {"about": f"{about}.", "size": len(seen.workers), **_within(machine), "workers": groups}


def check_new(path: Path) -> None:
    """Raise ConfigError when a cluster file cannot be made there, which is told before anything is measured."""
    if path.exists():
        raise ConfigError(f"--out: {path} is there already, name a file that is not")
    if not path.parent.is_dir():
        raise ConfigError(f"--out: {path.parent} is not a directory, name a file in one that is there")


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
            "bandwidth": rate_text(machine.tcp_bytes_per_s),
            "latency": seconds_text(machine.tcp_answer_s / 2),
            "inside_bandwidth": rate_text(machine.memory_bytes_per_s),
            "inside_latency": seconds_text(machine.unix_answer_s / 2),
        },
        "servers": {"hosts": "with workers"},
    }


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
            **timed_as(median(one.sample_s for one in group), median(one.spread for one in group)),
        }
        for group in groups
    ]


def timed_as(sample_s: float, spread: float) -> dict[str, Any]:
    """The keys of a group that say how fast it computes."""
    factor = {"factor": "lognormal", "spread": round(min(2.0, spread), 3)} if spread >= 0.005 else {}
    return {"compute": seconds_text(sample_s), **factor}


def seconds_text(value: float) -> str:
    """A time as a cluster file has it."""
    return f"{1e6 * value:.4g} us".replace("e+0", "e").replace("e+", "e") if value < 1e-3 else f"{1e3 * value:.6g} ms".replace("e+", "e")


def rate_text(bytes_per_s: float) -> str:
    """A bandwidth as a cluster file has it."""
    return f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.3g} MB/s"
