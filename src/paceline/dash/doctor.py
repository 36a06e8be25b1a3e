"""The command `doctor`: its options, and how it ends."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console

from paceline.errors import ExitCode
from paceline.settings import duration_s

_UNBROKEN = 200


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """What `paceline doctor` may be told."""

    out: Annotated[str, Parameter(metavar="DIR", help="Where runs are to be written. Default: runs.", negative=(), show_default=False)] = (
        "runs"
    )
    patience: Annotated[
        str, Parameter(metavar="TIME", help="How long the other processes may take to come. Default: 60s.", negative=(), show_default=False)
    ] = "60s"
    json: Annotated[bool, Parameter(metavar="", help="Print what was found as JSON.", negative=(), show_default=False)] = False


UNASKED = DoctorOptions()
"""Told nothing."""


def doctor_command(*, options: DoctorOptions = UNASKED) -> int:
    """Tell whether a job can run on this machine or, under a launcher, on all its hosts, and what would make it faster.

    Under a launcher: torchrun --nnodes 2 --nproc-per-node 1 ... -m paceline doctor
    """
    from paceline.dash.hosts import tell_report
    from paceline.plan.doctor.examination import examine

    report = examine(os.environ, Path(options.out), patience_s=duration_s(options.patience), clock=time.time)
    if report is None:
        return ExitCode.OK
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
    else:
        tell_report(Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _UNBROKEN), report)
    return ExitCode.OK if report.is_well else ExitCode.SCRIPT_FAILED
