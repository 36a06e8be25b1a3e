"""Where a checkup begins: under a launcher with all its hosts, else with this machine alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from paceline.engine.torchrun.launch import Launch, find_launch
from paceline.plan.doctor.advice import advice_for
from paceline.plan.doctor.checkup import Checkup, Measure, nothing
from paceline.plan.doctor.facts import facts_here, trust_here
from paceline.plan.doctor.findings import Host, Report
from paceline.plan.machine import Machine, measure_machine
from paceline.plan.speed import Clock

ALONE = "no launcher has set RANK and WORLD_SIZE, so it is this machine alone"


def machine_only() -> tuple[Machine, None]:
    """What a host measures of itself when no script is to be timed."""
    return measure_machine(), None


def examine(environ: Mapping[str, str], out: Path, *, patience_s: float, clock: Clock) -> Report | None:
    """The report; None in a process of a launch that has nothing to tell, since rank 0 has.

    Raises PacelineError when this process cannot take part, or rank 0 has found something that fails.
    """
    launch = find_launch(environ)
    if launch is not None:
        return examine_hosts(launch, environ, out, patience_s=patience_s, clock=clock)
    report = Report(ALONE, (Host(0, 1, facts_here(environ, out, None), machine=measure_machine()),))
    return msgspec.structs.replace(report, advice=tuple(advice_for(report)))


def examine_hosts(
    launch: Launch,
    environ: Mapping[str, str],
    out: Path,
    *,
    patience_s: float,
    clock: Clock,
    measure: Measure = machine_only,
    prepare: Callable[[], None] = nothing,
) -> Report | None:
    """The same of a launch; `measure` is what each host measures of itself, after rank 0 has called `prepare`."""
    facts = facts_here(environ, out, launch)
    return Checkup(launch, facts, trust_here(facts, environ), patience_s=patience_s, clock=clock).run(measure, prepare)
