"""The `paceline` command: reads the command line, resolves the settings, hands them to the engine.

Errors of the user are one sentence on stderr and exit code 2. torch is never imported here, so `--help` is fast.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console
from rich.table import Table

from paceline.config import Resolved, Sizes, explain, resolve
from paceline.dash.doctor import doctor_command
from paceline.dash.keys import keys_new
from paceline.dash.planning import CALIBRATED, PLANNED, CalibrateOptions, PlanOptions, calibrate_command, plan_command
from paceline.engine.surroundings import num_cores
from paceline.errors import ConfigError, ExitCode, PacelineError
from paceline.hybrid import mode_names
from paceline.options import NOTHING_GIVEN, Options
from paceline.pace import KEYS, pace_names
from paceline.settings import FIELDS, MOST_SAMPLES, whole

_Script = Annotated[str | None, Parameter(help="The Python file that each worker runs.", show_default=False)]
_Args = Annotated[str, Parameter(help="The script's own arguments, passed on untouched.", show_default=False)]
_Words = Annotated[
    str, Parameter(name="WORDS", help="The directory of a RUN; with --script, the script's own arguments.", show_default=False)
]
_RunDir = Annotated[str | None, Parameter(help="The directory of the run.", show_default=False)]
_At = Annotated[
    str | None,
    Parameter(name="--at", metavar="SAMPLES", help="Show the decision in force at so many samples, whole.", show_default=False),
]
_USAGE = "paceline run [OPTIONS] SCRIPT [ARGS...]"
_FLAGS = ("--help", "-h", "--version", "--no-gradients")
_OFTEN_THE_SCRIPTS = ("batch", "out", "seed")
_WIDTH, _UNBROKEN = 80, 10_000

_is_own_process = False


def _epilogue() -> str:
    paces, modes = pace_names(), mode_names()
    width = max(len(shown) for shown, _ in modes)
    lines = [fill(f"  {shown:<{width}}  {meaning}", _WIDTH, subsequent_indent=" " * (width + 4)) for shown, meaning in modes]
    keys = ["Keys may follow a pace, as in ksync:3,grace_s=0.05:", "  " + ", ".join(KEYS)]
    return "\n".join(["Paces:", *lines[: len(paces)], *keys, "Policies, which move the pace as the run goes on:", *lines[len(paces) :]])


app = App(
    name="paceline",
    help="Train a PyTorch model in lockstep, free-running, or anywhere between.",
    help_format="plaintext",
    version=version("paceline"),
    print_error=False,
    exit_on_error=False,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
_config_app = App(name="config", help="Look at settings.")
app.command(_config_app)
_keys_app = App(name="keys", help="Make the key that the hosts of a job share.")
app.command(_keys_app)


def _resolved(options: Options, script: str, args: Sequence[str]) -> Resolved:
    given = asdict(options)
    path = given.pop("config")
    given["slow"] = ",".join(options.slow) or None
    given["gradients"] = "no" if given.pop("no_gradients") else None
    return resolve(
        cores=num_cores(),
        stamp=datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        command_line=given,
        environ=os.environ,
        config=path,
        script=script,
        args=args,
        sizes_of=_sizes_of,
    )


def _sizes_of(cluster: str | None) -> Sizes:
    from paceline.engine.virtual.cluster_file import loaded_of

    loaded = loaded_of(cluster).cluster
    return Sizes(loaded.default_workers, loaded.servers.count)


@app.command(usage=f"Usage: {_USAGE}", help_epilogue=_epilogue())
def run(script: _Script = None, /, *args: _Args, options: Options = NOTHING_GIVEN) -> int:
    """Train with SCRIPT on the workers of this machine. What follows SCRIPT is the script's own.

    Every setting can also be an environment variable (PACELINE_WORKERS=4) or a line of a --config file, which beats it.
    """
    if script is None:
        raise ConfigError(f"run needs a script, as in {_USAGE}")
    text = _text_of(script)
    resolved = _resolved(options, script, args)
    if resolved.settings.engine == "torchrun":
        raise ConfigError(f"--engine torchrun is started by its launcher, as in torchrun --nproc-per-node 2 {script}")
    if resolved.settings.engine == "virtual":
        _begin_anew()
    for sentence in (*resolved.warnings(), *_misplaced(args, script, text)):
        _say(sentence)
    from paceline.dash.report import write_report

    if resolved.settings.engine == "virtual":
        from paceline.engine.virtual.cluster_file import loaded_of
        from paceline.engine.virtual.virtual_run import VirtualRun

        loaded = loaded_of(resolved.settings.cluster)
        return VirtualRun(resolved, loaded, write_report).run(gradients=resolved.settings.gradients)
    if resolved.settings.engine == "ray":
        from paceline.engine.ray.ray_run import RayRun

        return RayRun(resolved, write_report).run()
    from paceline.engine.local.supervisor import Supervisor

    return Supervisor(resolved, write_report).run()


@_config_app.command(name="explain", usage="Usage: paceline config explain [OPTIONS] [SCRIPT] [ARGS...]", help_epilogue=_epilogue())
def config_explain(script: _Script = None, /, *args: _Args, options: Options = NOTHING_GIVEN) -> int:
    """Show each setting that `run` with the same options would have, and where it came from."""
    resolved = _resolved(options, script or "", args)
    table = Table(box=None, pad_edge=False)
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for row in explain(resolved):
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)
    for sentence in resolved.warnings():
        _say(sentence)
    return ExitCode.OK


def _text_of(script: str) -> str:
    try:
        return Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        states: dict[type[OSError], str] = {FileNotFoundError: "does not exist", IsADirectoryError: "is not a file"}
        raise ConfigError(f"the script {script} {states.get(type(error), f'cannot be read: {error.strerror}')}") from None


def _misplaced(args: Sequence[str], script: str, text: str) -> list[str]:
    """A hint for each option of ours among the script's arguments, unless the script's text speaks of one itself."""
    given = dict.fromkeys(arg.partition("=")[0] for arg in args if arg.startswith("--"))
    ours = {f"--{name.replace('_', '-')}": name for name in FIELDS if name not in _OFTEN_THE_SCRIPTS}
    return [
        f"{option} stands behind {script}, so the script gets it; to set it for the run, write it before {script}"
        for option in given
        if option in ours and option not in text and not re.search(rf"\b{ours[option]}\b", text)
    ]


@app.command(usage="Usage: paceline why [OPTIONS] RUN")
def why(run_dir: _RunDir = None, /, *, at: _At = None) -> int:
    """Tell why a run moved its pace: each move with the numbers that led to it, and what was held back."""
    if run_dir is None:
        raise ConfigError("why needs the directory of a run, as in paceline why runs/train-20260101-120000")
    from paceline.dash.why import tell_decision, tell_story
    from paceline.trace.why import decision_at, story_of

    # lines that go into a file or a pipe are not broken
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _UNBROKEN)
    if at is None:
        tell_story(console, story_of(Path(run_dir)))
    else:
        try:
            samples = whole(at, least=0, most=MOST_SAMPLES)
        except ConfigError as error:
            raise ConfigError(f"--at: {error}") from None
        tell_decision(console, decision_at(Path(run_dir), samples))
    return ExitCode.OK


@app.command(usage="Usage: paceline plan SCRIPT [OPTIONS] [-- ARGS...]")
def plan(script: _Script = None, /, *args: _Args, options: PlanOptions = PLANNED) -> int:
    """Find out here which pace trains SCRIPT fastest on a cluster: short runs in virtual time, a ranking, and why."""
    if script is None:
        raise ConfigError("plan needs a script, as in paceline plan SCRIPT --cluster FILE")
    _begin_anew()
    return plan_command(script, args, options, say=_say)


@app.command(usage="Usage: paceline calibrate [RUN | --script SCRIPT [-- ARGS...]] [--out FILE]")
def calibrate(*words: _Words, options: CalibrateOptions = CALIBRATED) -> int:
    """Measure this machine, the workers of a RUN or, under a launcher, its hosts, and write a file that --cluster takes."""
    _begin_anew()
    return calibrate_command(words, options, say=_say)


def _begin_anew() -> None:
    """What is played here must not depend on how the process was started."""
    if _is_own_process:
        from paceline.engine.virtual.process import begin_anew

        begin_anew()


_keys_app.command(keys_new, name="new", usage="Usage: paceline keys new FILE [--days N]")
app.command(doctor_command, name="doctor", usage="Usage: paceline doctor [OPTIONS]")


def _say(sentence: object) -> None:
    text = " ".join(str(sentence).split())
    sys.stderr.write(f"paceline: {text}\n")


def split_at_script(tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own options, and the script with everything after it.

    >>> split_at_script(["--workers", "4", "--seed=1", "train.py", "--workers", "9"])
    (['--workers', '4', '--seed=1'], ['train.py', '--workers', '9'])
    """
    place = 0
    while place < len(tokens):
        token = tokens[place]
        if token == "--":
            return list(tokens[:place]), list(tokens[place + 1 :])
        if not token.startswith("-") or token == "-":
            break
        takes_next = "=" not in token and token not in _FLAGS and not (tokens[place + 1 : place + 2] or ["--"])[0].startswith("--")
        place += 2 if takes_next else 1
    return list(tokens[:place]), list(tokens[place:])


def _guarded(tokens: Sequence[str]) -> list[str]:
    """The tokens with the script's part behind `--`, so that none of it is taken for an option of ours."""
    for command in (["run"], ["config", "explain"]):
        if list(tokens[: len(command)]) == command:
            options, script = split_at_script(tokens[len(command) :])
            return [*command, *options, "--", *script] if script else [*command, *options]
    return list(tokens)


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. Without `tokens` it is the process's own command line."""
    global _is_own_process
    _is_own_process = tokens is None
    try:
        return app(_guarded(sys.argv[1:] if tokens is None else tokens)) or ExitCode.OK
    except CycloptsError as error:
        _say(error)
        return ExitCode.BAD_USAGE
    except PacelineError as error:
        _say(error)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
