"""The session of a script: finds the engine it runs on and holds its one run."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping

from msgspec.structs import replace

from paceline.config import COMMAND_LINE, Resolved, check_policy, resolve
from paceline.engine.link import Link, current
from paceline.errors import ConfigError, UsageError
from paceline.hybrid import Mode, start_of
from paceline.session.joined import Joined
from paceline.session.run import Run, say
from paceline.session.solo import Solo
from paceline.settings import FIELDS, MOST_PROCESSES, Settings, as_mode

__all__ = ["Run", "init"]

OWN = ("leases", "batch", "seed", "slow", "compute")
"""Settings that only workers read, so that a script may still give them."""

_run: Run | None = None


def init(pace: str | Mode | None = None, **settings: object) -> Run:
    """The run of this script: one worker of a job under `paceline run` or a launcher, else the script alone.

    `pace` and further settings are what the script wishes for; the command line beats them. Raises ConfigError for
    a value that is not allowed, UsageError when called a second time.
    """
    global _run
    link = current()
    if _run is not None or (link is not None and link.has_run):
        raise UsageError("paceline.init() was called a second time; a script has one run, keep what the first call returned")
    wishes = {"pace": pace, **settings}
    link = link or _launched(wishes)
    if link is None:
        # alone, no quorum is too large: the script is to run as it is
        resolved = resolve(cores=MOST_PROCESSES, stamp="", init=wishes, environ=os.environ)
        _run = alone = Solo(start_of(resolved.settings.pace))
        atexit.register(alone.tell, "at the end")
        say("alone, as under plain `python`; `paceline run SCRIPT` trains with several workers")
        return _run
    wished = "" if pace is None else as_mode(pace).name
    decided = in_force(link.resolved, wishes)
    run = Joined(link, decided, wished)
    link.has_run = True
    where = link.surroundings
    say(f"engine {where.engine}, because {where.because}: worker {run.worker} of {run.num_workers}, pace {decided.pace}")
    return run


def _launched(wishes: Mapping[str, object]) -> Link | None:
    """The link of a run that a launcher has started; under `paceline run` nobody waits for these imports."""
    from paceline.dash.report import write_report
    from paceline.engine.torchrun.join import launched

    return launched(os.environ, wishes, write_report)


def in_force(resolved: Resolved, wishes: Mapping[str, object]) -> Settings:
    """The settings of a worker whose script wishes for some. Raises ConfigError for one that comes too late."""
    settings = resolved.settings
    for name, value in wishes.items():
        if name not in FIELDS:
            raise ConfigError(f"init({name}=...) is not a setting, allowed: {', '.join(FIELDS)}")
        if value is None or resolved.origins[name] == COMMAND_LINE:
            continue
        field = FIELDS[name]
        parsed = field.parse(value)
        if name in OWN or (name == "pace" and resolved.pace_is_open):
            settings = replace(settings, **{field.stored_as: parsed})
            check_policy(settings.pace)
        elif parsed != field.of(settings):
            option = name.replace("_", "-")
            raise ConfigError(
                f"init({name}={value!r}) comes too late, the processes of the run have started; give --{option} to `paceline run`"
            )
    return settings
