"""The commands `plan` and `calibrate`: their options, what they write, and what they say. torch is imported when they begin."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Console

from paceline.engine.torchrun.launch import Launch, find_launch
from paceline.errors import ConfigError, ExitCode, WriteError

LEAST_SHARE = 0.01
MOST_SEEDS = 100
HOSTS_S = 120.0
"""How long the hosts of a launch may take to come: each may have a script to time first."""
_UNBROKEN = 200

Say = Callable[[object], None]


def _option(metavar: str, text: str) -> Parameter:
    return Parameter(metavar=metavar, help=text, negative=(), show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What `paceline plan` may be told."""

    cluster: Annotated[
        str | None, _option("NAME|FILE", "The cluster to plan for: spot, wan, ... or a TOML file. Default: even workers.")
    ] = None
    target: Annotated[
        str | None, _option("METRIC=VALUE", "What is to be reached, as in accuracy=0.97 or 'loss<=0.2'. Default: sync's loss in its pilot.")
    ] = None
    pace: Annotated[
        tuple[str, ...], _option("PACE", "A candidate; may be repeated. Default: sync, backup, ksync, ssp, async, hybrid.")
    ] = ()
    workers: Annotated[str | None, _option("N", "How many workers. Default: the cluster's.")] = None
    servers: Annotated[str | None, _option("M", "How many servers. Default: the cluster's, else one for each worker.")] = None
    seed: Annotated[str | None, _option("S", "Seed of the runs. Default: 0.")] = None
    seeds: Annotated[int, _option("N", "With how many seeds each pace is tried; their means are compared. Default: 1.")] = 1
    share: Annotated[float, _option("SHARE", "Part of a run that each pilot plays. Default: 0.1.")] = 0.1
    out: Annotated[str | None, _option("DIR", "Directory for plan.json, plan.html and logs. Default: plans/SCRIPT-TIME.")] = None
    json: Annotated[bool, _option("", "Print the plan as JSON instead of a table.")] = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """What `paceline calibrate` may be told."""

    out: Annotated[str, _option("FILE", "The cluster file to write. Default: cluster.toml.")] = "cluster.toml"
    script: Annotated[str | None, _option("SCRIPT", "Time the steps of this script here; the arguments are then its own.")] = None


PLANNED, CALIBRATED = PlanOptions(), CalibrateOptions()
"""Told nothing."""


def plan_command(script: str, args: Sequence[str], options: PlanOptions, *, say: Say) -> int:
    """Make a plan, show it and write it. Raises ConfigError for what is not allowed."""
    from paceline.dash.plan import tell_plan, write_plan_page
    from paceline.plan.advise import advice
    from paceline.plan.planner import Planner
    from paceline.plan.target import parse_target

    if not LEAST_SHARE <= options.share <= 1.0:
        raise ConfigError(f"--share: {options.share:g} is not allowed, it must be from {LEAST_SHARE} to 1")
    if not 1 <= options.seeds <= MOST_SEEDS:
        raise ConfigError(f"--seeds: {options.seeds} is not allowed, it must be from 1 to {MOST_SEEDS}")
    wish = parse_target(options.target) if options.target is not None else None
    given = {"workers": options.workers, "servers": options.servers, "seed": options.seed}
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    out = Path(options.out) if options.out is not None else Path("plans", f"{PurePath(script).stem}-{stamp}")
    planner = Planner(script, cluster=options.cluster, logs=out / "logs", args=args, tell=say, settings=given)
    planner.check(options.pace)
    _make_folder(out)
    plan = planner.make(wish=wish, paces=options.pace, share=options.share, num_seeds=options.seeds)
    data = msgspec.json.format(msgspec.json.encode({**msgspec.to_builtins(plan), "advice": advice(plan)}), indent=2)
    try:
        (out / "plan.json").write_bytes(data + b"\n")
    except OSError as error:
        raise WriteError(f"{out / 'plan.json'} could not be written: {error.strerror}") from error
    page = write_plan_page(plan, out / "plan.html")
    if options.json:
        sys.stdout.write(f"{data.decode()}\n")
    else:
        console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _UNBROKEN)
        tell_plan(console, plan)
        console.print(f"\nplan: {page}", soft_wrap=True)
    return ExitCode.OK


def calibrate_command(words: Sequence[str], options: CalibrateOptions, *, say: Say) -> int:
    """Measure, and write a cluster file. Raises ConfigError for what is not allowed."""
    from paceline.plan.calibrate import check_new, machine_cluster, run_cluster, write_cluster
    from paceline.plan.machine import measure_machine
    from paceline.plan.planner import profile_alone
    from paceline.trace.record import read_summary

    launch = find_launch(os.environ)
    if launch is not None and launch.world_size > 1:
        return _calibrate_hosts(launch, words, options, say)
    if options.script is None and len(words) > 1:
        raise ConfigError(f"calibrate takes the directory of one run, got {len(words)}: {', '.join(words)}")
    path = Path(options.out)
    check_new(path)
    profile = profile_alone(options.script, words) if options.script is not None else None
    run_dir = Path(words[0]) if words and profile is None else None
    if run_dir is not None:
        read_summary(run_dir)  # a directory that holds no run is told before anything is measured
    say("measuring memory and sockets")
    machine = measure_machine()
    cluster = machine_cluster(machine, profile) if run_dir is None else run_cluster(run_dir, machine)
    write_cluster(cluster, path)
    _tell_cluster(cluster, path)
    return ExitCode.OK


def _calibrate_hosts(launch: Launch, words: Sequence[str], options: CalibrateOptions, say: Say) -> int:
    """All hosts of a launch, of which rank 0 writes the file."""
    from paceline.plan.calibrate import check_new, write_cluster
    from paceline.plan.doctor.examination import examine_hosts
    from paceline.plan.doctor.findings import SampleTime
    from paceline.plan.machine import Machine, measure_machine
    from paceline.plan.planner import profile_alone
    from paceline.plan.regions import hosts_cluster

    if words and options.script is None:
        raise ConfigError(f"{launch.because}, so calibrate measures its hosts; for the run {words[0]} start it without a launcher")

    def measure() -> tuple[Machine, SampleTime | None]:
        machine = measure_machine()
        profile = profile_alone(options.script, words) if options.script is not None else None
        return machine, SampleTime(profile.sample_s, profile.sample_low_s, profile.sample_high_s) if profile is not None else None

    path = Path(options.out)
    prepare = partial(check_new, path)
    report = examine_hosts(launch, os.environ, path.parent, patience_s=HOSTS_S, clock=time.time, measure=measure, prepare=prepare)
    if report is None:
        return ExitCode.OK
    for one in report.advice:
        say(f"{one.gravity}: {one.sentence}")
    cluster = hosts_cluster(report)
    write_cluster(cluster, path)
    _tell_cluster(cluster, path)
    return ExitCode.OK if report.is_well else ExitCode.SCRIPT_FAILED


def _tell_cluster(cluster: dict[str, Any], path: Path) -> None:
    sys.stdout.write(f"{cluster['about']}\n")
    for name, value in cluster["network"].items():
        if isinstance(value, str):
            sys.stdout.write(f"  {name.replace('_', ' ')}: {value}\n")
    for one in cluster["network"].get("between", ()):
        sys.stdout.write(f"  between {' and '.join(one['regions'])}: {one['bandwidth']}, {one['latency']}\n")
    sys.stdout.write(f"{path} is written: name it in --cluster, and correct in it what you know better\n")


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise ConfigError(f"--out: {out} is not empty, a plan needs a directory of its own")
    except OSError as error:
        raise WriteError(f"{out} could not be written: {error.strerror}") from error
