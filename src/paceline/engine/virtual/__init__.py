"""A laptop that pretends to be a cluster: the user's script on N virtual workers, in virtual time, with real gradients.

`run` is `paceline run --engine virtual` as a call. `timing.simulate` is a job without a script and without gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple


class Finished(NamedTuple):
    """A run that is over: its exit code, and its directory with `summary.json` and the rest."""

    code: int
    out: Path


def run(
    script: str | Path,
    *,
    out: str | Path,
    args: Sequence[str] = (),
    cluster: str | None = None,
    gradients: bool = True,
    write_report: Callable[[Path], Path] | None = None,
    **settings: object,
) -> Finished:
    """Run a script on a cluster: a file, a ready-made one by its name, or even workers. `settings` are those of the command.

    What it prints goes to stdout and stderr as on the command line. The same seed gives the same run in any process that
    has the same PYTHONHASHSEED. Raises ConfigError for what is not allowed.
    """
    from paceline.config import resolve
    from paceline.engine.virtual.cluster_file import loaded_of
    from paceline.engine.virtual.virtual_run import VirtualRun

    loaded = loaded_of(cluster)
    given = {"workers": loaded.cluster.default_workers, "servers": loaded.cluster.servers.count, **settings, "out": str(out)}
    resolved = resolve(cores=1, stamp="", command_line=given, script=str(script), args=args)
    return Finished(VirtualRun(resolved, loaded, write_report).run(gradients=gradients), Path(out))
