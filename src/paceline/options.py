"""The settings of a run as options of the command line, as it gave them; `config` checks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

_HOW = Group("How to run", sort_key=1)
_SAMPLES = Group("Samples and learning rate", sort_key=2)
_TRY = Group("Trying things out", sort_key=3)
_RAY = Group("With --engine ray", sort_key=4)


def _option(group: Group, metavar: str, text: str) -> Parameter:
    return Parameter(group=group, metavar=metavar, help=text, negative=(), show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """One attribute for each option; None or empty where it was not given."""

    workers: Annotated[str | None, _option(_HOW, "N", "Processes that run the script. Default: the number of cores.")] = None
    servers: Annotated[str | None, _option(_HOW, "M", "Processes that hold the parameters. Default: min(cores, workers).")] = None
    pace: Annotated[str | None, _option(_HOW, "PACE", "How far workers may drift apart, as listed below. Default: hybrid.")] = None
    out: Annotated[str | None, _option(_HOW, "DIR", "Directory for what the run leaves. Default: runs/SCRIPT-TIME.")] = None
    seed: Annotated[str | None, _option(_HOW, "S", "Seed of the leases and the workers' random streams. Default: 0.")] = None
    patience: Annotated[
        str | None,
        _option(_HOW, "TIME", "How long others are waited for (servers and coordinator at least 30s): 500ms, 60s, 2m. Default: 60s."),
    ] = None
    config: Annotated[str | None, _option(_HOW, "FILE", "TOML file of settings, beaten by the command line.")] = None
    leases: Annotated[
        str | None,
        _option(_SAMPLES, "RULE", "exact: fast workers take more samples; static: the split of DistributedSampler. Default: exact."),
    ] = None
    batch: Annotated[
        str | None,
        _option(_SAMPLES, "RULE", "per-worker: the script's batch is each worker's; global: it is cut among them. Default: per-worker."),
    ] = None
    shares: Annotated[
        str | None,
        _option(_SAMPLES, "RULE", "even, or speed: each worker's batch in proportion to its speed. Default: even."),
    ] = None
    lr_rule: Annotated[
        str | None,
        _option(_SAMPLES, "RULE", "linear, sqrt or none: how the learning rate follows the quorum. Default: linear for SGD, else sqrt."),
    ] = None
    route: Annotated[
        str | None,
        _option(_HOW, "ROUTE", "How sync updates are made: by servers, collective (workers sum among themselves), or auto. Default: auto."),
    ] = None
    server_device: Annotated[
        str | None,
        _option(_HOW, "DEVICE", "Where servers step the optimizer: cpu, cuda (one device after the other) or cuda:1. Default: cpu."),
    ] = None
    slow: Annotated[
        tuple[str, ...],
        _option(_TRY, "W=FACTOR", "Slow worker W down, or only in a share of the run: 1=4 or 1=4@0.33-0.66. May be repeated."),
    ] = ()
    compute: Annotated[
        str | None,
        _option(_TRY, "recorded:FILE", "Replace each step's compute time by a sleep of the recorded length."),
    ] = None
    engine: Annotated[
        str | None,
        _option(_TRY, "NAME", "local: processes of this machine; ray: actors; virtual: pretend to have a cluster. Default: local."),
    ] = None
    cluster: Annotated[
        str | None,
        _option(_TRY, "NAME|FILE", "The cluster of --engine virtual: spot, wan, ... or a TOML file. Default: even workers."),
    ] = None
    min_workers: Annotated[str | None, _option(_RAY, "N", "Workers that the run waits for before it begins. Default: --workers.")] = None
    max_workers: Annotated[str | None, _option(_RAY, "N", "Workers that the run takes once there is room. Default: --workers.")] = None
    address: Annotated[
        str | None,
        _option(_RAY, "HOST:PORT", "The Ray cluster; auto: one that runs here; local: one of the run's own. Default: auto, else local."),
    ] = None
    no_gradients: Annotated[bool, _option(_TRY, "", "With --engine virtual: only times, no training.")] = False


NOTHING_GIVEN = Options()
