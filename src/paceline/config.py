"""Where every setting of a run came from: resolved once, checked, frozen.

The command line beats an `init()` argument, that beats the file of `--config`, that the environment, that the default.
The environment, the number of cores and the time stamp are arguments; of files, only that of `--config`, the user's
own policy and recorded step times are read here.
"""

from __future__ import annotations

import json
import symtable
import tomllib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import msgspec
import tomli_w

from paceline.errors import ConfigError
from paceline.hybrid import Hybrid, Mode, check_mode
from paceline.settings import FIELDS, Settings, Slow, check_together

__all__ = [
    "COMMAND_LINE",
    "DEFAULT",
    "INIT",
    "Resolved",
    "Settings",
    "Slow",
    "check_policy",
    "explain",
    "from_toml",
    "read_recorded",
    "resolve",
    "to_toml",
]

COMMAND_LINE = "command line"
INIT = "init()"
DEFAULT = "default"

_PREFIX = "PACELINE_"
_ENGINES_OWN = "PACELINE_JOB_"
HOSTS_OWN = (
    *("PACELINE_HOST", "PACELINE_PORT", "PACELINE_ADVERTISE", "PACELINE_SAME_HOST"),
    *("PACELINE_WIRE", "PACELINE_KEY_FILE", "PACELINE_SILENCE", "PACELINE_OVERLAP"),
)
"""How one host reaches the others, and what it has to spare; these may differ between the hosts of a run, so they are no settings of it."""
_TABLES = ("run", "origin")
_DEFAULTS: dict[str, object] = {
    "pace": "hybrid",
    "leases": "exact",
    "batch": "per-worker",
    "shares": "even",
    "seed": 0,
    "slow": (),
    "patience": "60s",
    "engine": "local",
    "route": "auto",
    "server_device": "cpu",
    "gradients": "yes",
}


class Resolved(msgspec.Struct, frozen=True):
    """Checked settings, with the origin of each by field name."""

    settings: Settings
    origins: dict[str, str]

    @property
    def pace_is_open(self) -> bool:
        """Whether the script's `init(pace=...)` decides: only the command line beats it."""
        return self.origins["pace"] not in (COMMAND_LINE, INIT)

    def warnings(self) -> list[str]:
        """What is allowed but probably not meant, a sentence each."""
        return check_mode(self.settings.pace, self.settings.least_workers)


class _Given(NamedTuple):
    """A raw value, its origin, and the place where the user finds it again."""

    value: object
    origin: str
    place: str


def _variable(name: str) -> str:
    return _PREFIX + name.upper()


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _option(name: str) -> str:
    """How the command line writes a setting."""
    return "--no-gradients" if name == "gradients" else f"--{_dashed(name)}"


def _unknown(place: str, name: str, allowed: Sequence[str], shown: Callable[[str], str] = str) -> ConfigError:
    near = get_close_matches(name, allowed, n=1, cutoff=0.5)
    hint = f"did you mean {shown(near[0])}?" if near else f"allowed: {', '.join(map(shown, allowed))}"
    return ConfigError(f"{place}{shown(name)} is not a setting, {hint}")


def _from_arguments(values: Mapping[str, object], origin: str) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    for name, value in values.items():
        if name not in FIELDS:
            raise _unknown(f"{origin}: ", name, tuple(FIELDS))
        if value is not None:
            place = _option(name) if origin == COMMAND_LINE else f"init({name}=...)"
            given[name] = _Given(value, origin, place)
    return given


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    """Settings of `PACELINE_*`; names that start with `PACELINE_JOB_` are how an engine speaks to its own processes."""
    given: dict[str, _Given] = {}
    for variable, value in environ.items():
        if not variable.startswith(_PREFIX) or variable.startswith(_ENGINES_OWN) or variable in HOSTS_OWN:
            continue
        name = variable.removeprefix(_PREFIX).lower()
        if name not in (*FIELDS, "config"):
            raise _unknown("the environment variable ", name, (*FIELDS, "config"), shown=_variable)
        given[name] = _Given(value, variable, variable)
    return given


def _from_file(path: str) -> dict[str, _Given]:
    """Settings of a TOML file; the tables that a run directory's `run.toml` adds are passed over."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"the configuration file {path} is not TOML: {error}") from None
    given: dict[str, _Given] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if key in _TABLES:
            continue
        if name not in FIELDS:
            raise _unknown(f"{path}: ", name, tuple(FIELDS), shown=_dashed)
        if name in given:
            raise ConfigError(f"{path}: {key} is given twice, once is allowed")
        given[name] = _Given(value, path, f"{path}: {key}")
    return given


class Sizes(NamedTuple):
    """How many workers and servers a cluster has when nobody says so; None: it does not say it either."""

    workers: int | None = None
    servers: int | None = None


def _default(name: str, *, cores: int, script: str, stamp: str, workers: int) -> Any:
    """The default of a setting, as a value that its field parses; None is none."""
    match name:
        case "workers":
            return max(1, cores)
        case "servers":
            return max(1, min(cores, workers))
        case "out":
            return str(PurePath("runs", f"{PurePath(script).stem or 'run'}-{stamp}"))
        case _:
            return _DEFAULTS.get(name)


def resolve(
    *,
    cores: int,
    stamp: str,
    command_line: Mapping[str, object] = {},
    init: Mapping[str, object] = {},
    environ: Mapping[str, str] = {},
    config: str | None = None,
    script: str = "",
    args: Sequence[str] = (),
    sizes_of: Callable[[str | None], Sizes] = lambda _: Sizes(),
) -> Resolved:
    """The settings in force; raises ConfigError with one sentence for whatever is not allowed.

    `command_line` and `init` map setting names to values, None for what was not given; `config` is the command line's.
    `stamp` is the UTC time that ends the default name of the run directory. `sizes_of` tells what a virtual cluster has.
    """
    environment = _from_environment(environ)
    variable = environment.pop("config", None)
    path = config or (str(variable.value) if variable else None)
    origin_of_path = COMMAND_LINE if config else variable.origin if variable else DEFAULT
    given = environment
    given |= _from_file(path) if path else {}
    given |= _from_arguments(init, INIT)
    given |= _from_arguments(command_line, COMMAND_LINE)
    values = {name: _parsed(name, one) for name, one in given.items()}
    if values.get("engine") == "virtual":
        sizes = sizes_of(values.get("cluster"))
        cores = values.get("workers") or sizes.workers or cores  # a machine may pretend to have as many as it likes
        if sizes.servers is not None:
            values.setdefault("servers", sizes.servers)
    for name, field in FIELDS.items():
        value = _default(name, cores=cores, script=script, stamp=stamp, workers=values.get("workers", 1))
        values.setdefault(name, None if value is None else field.parse(value))
    for text in (script, *args):
        if not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text):
            raise ConfigError(f"the script or its argument {text!r} is not UTF-8, which run.toml must be")
    settings = _settings(values, config=path, script=script, args=tuple(args))
    wrong = check_together(settings)
    if wrong is not None:
        name, error = wrong
        raise ConfigError(f"{given[name].place if name in given else name}: {error}")
    check_policy(settings.pace)
    if settings.compute is not None:
        try:
            read_recorded(settings.compute)
        except ConfigError as error:
            raise ConfigError(f"{given['compute'].place}: {error}") from None
    origins = {name: given[name].origin if name in given else DEFAULT for name in FIELDS}
    return Resolved(settings, origins | {"config": origin_of_path})


def check_policy(mode: Mode) -> None:
    """Raise ConfigError when `mode` is a user's own policy whose file cannot be read or does not define the function."""
    if not isinstance(mode, Hybrid) or mode.policy != "user":
        return
    where = f"pace {mode.name!r}: the policy's file {mode.file}"
    try:
        text = Path(mode.file).read_text(encoding="utf-8")
        top = symtable.symtable(text, mode.file, "exec")
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise ConfigError(f"{where} is not Python, line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise ConfigError(f"{where} is not Python: {error}") from None
    if mode.function not in {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}:
        raise ConfigError(f"{where} defines no {mode.function} at its top level")


def read_recorded(path: str) -> list[float]:
    """The step times in seconds of a file: a JSON list, or a number a line. Raises ConfigError for anything else."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        words = json.loads(text) if text.lstrip().startswith("[") else text.split()
        times_s = [float(word) for word in words]
    except OSError as error:
        raise ConfigError(f"recorded:{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"recorded:{path} must hold one step time in seconds a line, or a JSON list of them: {error}") from None
    if not times_s or not all(0.0 <= time_s < float("inf") for time_s in times_s):
        raise ConfigError(f"recorded:{path} must hold at least one step time, each of 0 seconds or more")
    return times_s


def _parsed(name: str, given: _Given) -> Any:
    try:
        return FIELDS[name].parse(given.value)
    except ConfigError as error:
        raise ConfigError(f"{given.place}: {error}") from None


def _settings(values: Mapping[str, Any], *, config: str | None, script: str, args: tuple[str, ...]) -> Settings:
    fields: dict[str, Any] = {field.stored_as: values[name] for name, field in FIELDS.items()}
    return Settings(**fields, config=config, script=script, args=args)


def explain(resolved: Resolved) -> list[tuple[str, str, str]]:
    """A row (setting, value, origin) for each setting, in the order of the documentation."""
    settings, origins = resolved.settings, resolved.origins
    rows = [(name, field.text(settings), origins[name]) for name, field in FIELDS.items()]
    return [*rows, ("config", settings.config or "", origins["config"])]


def to_toml(resolved: Resolved) -> str:
    """The text of `run.toml`: a file that `--config` takes, with tables of what else the run was told."""
    settings = resolved.settings
    values = {name: (field, field.of(settings)) for name, field in FIELDS.items() if name != "out"}
    told = {name: field.write(value) for name, (field, value) in values.items() if value is not None}
    run: dict[str, Any] = {"out": settings.out, "script": settings.script, "args": list(settings.args)}
    if settings.config is not None:
        run["config"] = settings.config
    return tomli_w.dumps(told | {"run": run, "origin": resolved.origins})


def from_toml(text: str) -> Resolved:
    """What `to_toml` wrote; raises ConfigError when the text is something else."""
    try:
        content = tomllib.loads(text)
        run, origins = content.pop("run"), msgspec.convert(content.pop("origin"), dict[str, str])
        content["out"] = run["out"]
        values = {name: field.parse(content[name]) if name in content else None for name, field in FIELDS.items()}
        args = msgspec.convert(run["args"], tuple[str, ...])
        return Resolved(_settings(values, config=run.get("config"), script=str(run["script"]), args=args), origins)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the settings of the run are not readable: {error}") from None
