"""Where a checkup begins: under a launcher with all its hosts, else with this machine alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from paceline.engine.torchrun.launch import find_launch
from paceline.plan.doctor.advice import advice_for
from paceline.plan.doctor.checkup import Checkup
from paceline.plan.doctor.facts import Facts, facts_here, trust_here
from paceline.plan.doctor.findings import Host, Report
from paceline.plan.machine import measure_machine
from paceline.plan.speed import Clock

ALONE = "no launcher has set RANK and WORLD_SIZE, so it is this machine alone"


def examine(environ: Mapping[str, str], out: Path, *, patience_s: float, clock: Clock, told: Facts | None = None) -> Report | None:
    """The report; None in a process of a launch that has nothing to tell, since rank 0 has. `told` stands in for this host's own facts.

    Raises PacelineError when this process cannot take part, or rank 0 has found something that fails.
    """
    launch = find_launch(environ)
    facts = told if told is not None else facts_here(environ, out, launch)
    if launch is not None:
        return Checkup(launch, facts, trust_here(facts, environ), patience_s=patience_s, clock=clock).run(measure_machine)
    report = Report(ALONE, (Host(0, 1, facts, machine=measure_machine()),))
    return msgspec.structs.replace(report, advice=tuple(advice_for(report)))
