"""The run directory before and after the run: made for one run only, and its summary always tells the exit code."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from paceline.config import Resolved, to_toml
from paceline.errors import ConfigError, ExitCode, PacelineError, WriteError
from paceline.trace.record import EVENTS, METRICS, SUMMARY, read_summary, write_summary

RUN = "run.toml"
LOGS = "logs"


def prepare_run_dir(run_dir: Path, resolved: Resolved) -> None:
    """Make the directory and write `run.toml`, which claims it for this run.

    Raises ConfigError when it holds a run already and WriteError when it cannot be written.
    """
    found = next((name for name in (RUN, EVENTS, METRICS, SUMMARY) if os.path.exists(run_dir / name)), None)
    if found is not None:
        raise _taken(run_dir, found)
    try:
        (run_dir / LOGS).mkdir(parents=True, exist_ok=True)
        with (run_dir / RUN).open("x", encoding="utf-8") as file:
            file.write(to_toml(resolved))
    except FileExistsError as error:
        if os.path.exists(run_dir / RUN):
            raise _taken(run_dir, RUN) from None
        raise WriteError(f"the run directory {run_dir} cannot be made: {error.strerror}") from error
    except OSError as error:
        with suppress(WriteError):
            write_summary(run_dir, {"exit": int(ExitCode.WRITE_FAILED)})
        raise WriteError(f"the run directory {run_dir} cannot be written: {error.strerror}") from error


def _taken(run_dir: Path, name: str) -> ConfigError:
    return ConfigError(f"{run_dir} already holds a run ({name} is there), choose another directory with --out")


def settle_summary(run_dir: Path, known: dict[str, object], code: int) -> dict[str, object]:
    """Make sure that `summary.json` is there and tells `code`; `known` fills in for what it lacks. Raises WriteError."""
    try:
        summary = read_summary(run_dir)
    except PacelineError:
        summary = {}
    if summary.get("exit") == code:
        return summary
    summary = {**known, **summary, "exit": code}
    write_summary(run_dir, summary)
    return summary
