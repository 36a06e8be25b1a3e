"""Runs of `paceline run --engine virtual`, each made once, and tables of what came of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from paceline.trace.record import read_summary

LIMIT_S = 1800.0


class Trial(NamedTuple):
    """A script on a cluster at a pace; `seed` is the run's and the script's own."""

    script: Path
    cluster: Path
    pace: str
    seed: int
    args: tuple[str, ...] = ()

    def command(self, out: Path) -> list[str]:
        """What makes the run."""
        seed = ["--seed", str(self.seed)]
        run = ["run", "--engine", "virtual", "--cluster", str(self.cluster), "--pace", self.pace, *seed, "--out", str(out)]
        return [sys.executable, "-m", "paceline", *run, str(self.script), *self.args, *seed]


def summary_of(trial: Trial, out: Path) -> dict[str, Any]:
    """The summary of a trial, which is made unless it is there. Ends the program when it cannot be made.

    A run that ended because its numbers were not finite has its summary too, without final values.
    """
    if not (out / "summary.json").exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(trial.command(out), capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
        told = done.stderr + done.stdout
        if done.returncode and "not finite" not in told:
            sys.exit(f"the run {out} ended with code {done.returncode}:\n{told}")
    return read_summary(out)


def summaries(trials: Mapping[Path, Trial], *, at_once: int) -> dict[Path, dict[str, Any]]:
    """The summaries of all trials by their directories, `at_once` made at the same time."""
    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(trials, pool.map(lambda out: summary_of(trials[out], out), trials), strict=True))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown writes it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
