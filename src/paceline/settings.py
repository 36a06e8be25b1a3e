"""The settings of a run as frozen values, and how each is read from a text or a TOML value and written back.

Nothing here knows where a value came from (see `config`). Every refusal names the value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from paceline.errors import ConfigError
from paceline.hybrid import Hybrid, Mode, check_mode, check_mode_lr_rule, mode_names, parse_mode
from paceline.pace import LrRule, Pace

Leases = Literal["exact", "static"]
Batch = Literal["per-worker", "global"]
Shares = Literal["even", "speed"]
Route = Literal["auto", "servers", "collective"]
Engine = Literal["local", "virtual", "torchrun", "ray"]

MOST_PROCESSES = 1024
MOST_SEED = 2**31 - 1
MOST_SAMPLES = 10**12 - 1
MOST_SLOW = 1000.0
LEAST_PATIENCE_S, MOST_PATIENCE_S = 0.1, 86_400.0
_YES_OR_NO = ("yes", "no")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"


def _plain(number: float) -> str:
    """All of a number's digits, as `_NUMBER` reads them."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


class Slow(msgspec.Struct, frozen=True):
    """Worker `worker` takes `factor` times as long, from share `start` to share `stop` of the run's samples."""

    worker: int
    factor: float
    start: float = 0.0
    stop: float = 1.0

    def __str__(self) -> str:
        span = "" if (self.start, self.stop) == (0.0, 1.0) else f"@{_plain(self.start)}-{_plain(self.stop)}"
        return f"{self.worker}={_plain(self.factor)}{span}"


class Settings(msgspec.Struct, frozen=True):
    """What a run is told. `compute` names a file of recorded step times; `lr_rule` None follows the optimizer's class.

    `server_device` is where servers step the optimizer, as torch names devices.
    `cluster` is what the virtual engine pretends to be, which without `gradients` only counts. `min_workers` and
    `max_workers` bound an elastic run, `address` is its Ray cluster's.
    """

    workers: int
    servers: int
    pace: Mode
    leases: Leases
    batch: Batch
    shares: Shares
    lr_rule: LrRule | None
    out: str
    seed: int
    slow: tuple[Slow, ...]
    compute: str | None
    patience_s: float
    engine: Engine
    route: Route
    server_device: str
    cluster: str | None
    gradients: bool
    min_workers: int | None = None
    max_workers: int | None = None
    address: str | None = None
    config: str | None = None
    script: str = ""
    args: tuple[str, ...] = ()

    @property
    def least_workers(self) -> int:
        """How few workers the run begins with."""
        return self.workers if self.min_workers is None else self.min_workers

    @property
    def most_workers(self) -> int:
        """How many workers there may be at a time; their numbers are below."""
        return self.workers if self.max_workers is None else self.max_workers

    @property
    def route_in_force(self) -> Route:
        """The route, as far as it needs no measuring: where processes share memory, nothing is faster than the servers."""
        return "servers" if self.route == "auto" and self.engine != "torchrun" else self.route

    @property
    def cuts_samples(self) -> bool:
        """Whether batches are cut when they are leased, in whatever parts hold then."""
        by_policy = isinstance(self.pace, Hybrid) and self.pace.gives_shares and self.leases == "exact"
        return self.batch == "global" or self.shares == "speed" or by_policy


class Field(NamedTuple):
    """One setting: its name in `Settings`, how it is read, how it is written into TOML."""

    stored_as: str
    parse: Callable[[object], Any]
    write: Callable[[Any], Any] = lambda value: value

    def of(self, settings: Settings) -> Any:
        """The value of this setting."""
        return getattr(settings, self.stored_as)

    def text(self, settings: Settings) -> str:
        """The value as a person would type it, empty for none."""
        value = self.of(settings)
        written = "" if value is None else self.write(value)
        return ",".join(map(str, written)) if isinstance(written, list) else str(written)


def whole(value: object, *, least: int, most: int) -> int:
    """A whole number within bounds, from an int or its digits."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,12}", value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{value!r} is not allowed, it must be a whole number from {least} to {most}")
    return value


def choice(value: object, allowed: Sequence[str]) -> Any:
    """One of the allowed words."""
    if value not in allowed:
        raise ConfigError(f"{value!r} is not allowed, it must be {' or '.join(allowed)}")
    return value


def path_text(value: object) -> str:
    """A path as it was typed."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ConfigError(f"{value!r} is not allowed, it must be a path")
    return value


def as_mode(value: object) -> Mode:
    """The pace or policy that a text names; a value is taken when its name stands for the same one, since it travels by name."""
    name = value.name if isinstance(value, Pace | Hybrid) else value
    if not isinstance(name, str):
        raise ConfigError(f"{value!r} is not allowed, it must be one of {', '.join(shown for shown, _ in mode_names())}")
    mode = parse_mode(name)
    if isinstance(value, Pace | Hybrid) and value != mode:
        kind = type(value).__name__
        raise ConfigError(f"the {kind} given differs from what its name {name!r} stands for, name it as NAME:ARG,KEY=VALUE does")
    return mode


def duration_s(value: object) -> float:
    """Seconds from `60s`, `2m`, `500ms`, `1h` or a plain number of seconds.

    >>> duration_s("2m"), duration_s("500ms"), duration_s(3)
    (120.0, 0.5, 3.0)
    """
    found = re.fullmatch(rf"({_NUMBER}) ?(ms|s|m|h)?", str(value).strip())
    if found is None:
        raise ConfigError(f"{value!r} is not a duration, write it as 60s, 2m, 500ms or 1h")
    return round(float(found[1]) * _UNITS_S[found[2] or "s"], 6)


def patience_s(value: object) -> float:
    """How long others are waited for, in seconds."""
    seconds = duration_s(value)
    if not LEAST_PATIENCE_S <= seconds <= MOST_PATIENCE_S:
        raise ConfigError(f"{value!r} is not allowed, it must be from 100ms to 24h")
    return seconds


def slow_one(value: object) -> Slow:
    """One slowdown, `WORKER=FACTOR` or `WORKER=FACTOR@FROM-TO`.

    >>> slow_one("1=4@0.33-0.66")
    Slow(worker=1, factor=4.0, start=0.33, stop=0.66)
    """
    found = re.fullmatch(rf"([0-9]{{1,4}})=(-?{_NUMBER})(?:@({_NUMBER})-({_NUMBER}))?", str(value).strip())
    if found is None:
        raise ConfigError(f"{value!r} is not a slowdown, write WORKER=FACTOR or WORKER=FACTOR@FROM-TO, as in 1=4 or 1=4@0.33-0.66")
    slow = Slow(int(found[1]), float(found[2]), float(found[3] or 0.0), float(found[4] or 1.0))
    if not 1.0 <= slow.factor <= MOST_SLOW:
        raise ConfigError(f"factor {_plain(slow.factor)} in {value!r} is not allowed, it must be from 1 to {MOST_SLOW:g}")
    if not 0.0 <= slow.start < slow.stop <= 1.0:
        raise ConfigError(f"span {slow.start:g}-{slow.stop:g} in {value!r} is not allowed, FROM must be below TO, both from 0 to 1")
    return slow


def slow_list(value: object) -> tuple[Slow, ...]:
    """Slowdowns from a list, or from one text with commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Sequence):
        raise ConfigError(f"{value!r} is not allowed, it must be a list of WORKER=FACTOR texts")
    slows = tuple(sorted((slow_one(item) for item in items), key=lambda slow: (slow.worker, slow.start)))
    for slow, later in pairwise(slows):
        if slow.worker == later.worker and later.start < slow.stop:
            raise ConfigError(f"worker {slow.worker} is slowed twice at the same time, spans of one worker must not overlap")
    return slows


def device_name(value: object) -> str:
    """A device as torch names it; whether it is there is for the servers to see."""
    if not isinstance(value, str) or re.fullmatch(r"[a-z]{1,16}(?::[0-9]{1,3})?", value) is None:
        raise ConfigError(f"{value!r} is not allowed, it must be cpu or a device as torch names it: cuda, cuda:1")
    return value


def recorded(value: object) -> str:
    """The file that `recorded:FILE` names."""
    kind, _, path = str(value).partition(":")
    if kind != "recorded" or not path.strip():
        raise ConfigError(f"{value!r} is not allowed, it must be recorded:FILE")
    return path_text(path)


def ray_address(value: object) -> str:
    """Where a Ray cluster is: `HOST:PORT`, `auto` for one that runs here, `local` for one of the run's own."""
    text = str(value).strip()
    host, colon, port = text.rpartition(":")
    is_place = bool(host and colon) and re.fullmatch(r"[0-9]{1,5}", port) is not None and 0 < int(port) < 1 << 16 and "/" not in host
    if text not in ("auto", "local") and not is_place:
        raise ConfigError(f"{value!r} is not allowed, it must be HOST:PORT of a Ray cluster, auto or local")
    return text


FIELDS: dict[str, Field] = {
    "workers": Field("workers", lambda value: whole(value, least=1, most=MOST_PROCESSES)),
    "servers": Field("servers", lambda value: whole(value, least=1, most=MOST_PROCESSES)),
    "pace": Field("pace", as_mode, lambda mode: mode.name),
    "leases": Field("leases", lambda value: choice(value, get_args(Leases))),
    "batch": Field("batch", lambda value: choice(value, get_args(Batch))),
    "shares": Field("shares", lambda value: choice(value, get_args(Shares))),
    "lr_rule": Field("lr_rule", lambda value: choice(value, get_args(LrRule))),
    "out": Field("out", path_text),
    "seed": Field("seed", lambda value: whole(value, least=0, most=MOST_SEED)),
    "slow": Field("slow", slow_list, lambda slow: [str(one) for one in slow]),
    "compute": Field("compute", recorded, lambda path: f"recorded:{path}"),
    "patience": Field("patience_s", patience_s, lambda seconds: f"{_plain(seconds)}s"),
    "engine": Field("engine", lambda value: choice(value, get_args(Engine))),
    "route": Field("route", lambda value: choice(value, get_args(Route))),
    "server_device": Field("server_device", device_name),
    "cluster": Field("cluster", path_text),
    "gradients": Field("gradients", lambda value: choice(value, _YES_OR_NO) == "yes", lambda value: _YES_OR_NO[not value]),
    "min_workers": Field("min_workers", lambda value: whole(value, least=1, most=MOST_PROCESSES)),
    "max_workers": Field("max_workers", lambda value: whole(value, least=1, most=MOST_PROCESSES)),
    "address": Field("address", ray_address),
}


def check_together(settings: Settings) -> tuple[str, ConfigError] | None:
    """The first setting that does not go with the others, and why."""
    elastic = _check_elastic(settings)
    if elastic is not None:
        return elastic
    try:
        check_mode(settings.pace, settings.least_workers)
    except ConfigError as error:
        return "pace", error
    try:
        check_mode_lr_rule(settings.pace, settings.lr_rule)
    except ConfigError as error:
        return "lr_rule", error
    if settings.shares == "speed" and settings.leases == "static":
        return "shares", ConfigError("speed is not allowed with leases static, which fix every worker's samples; it needs leases exact")
    if settings.engine != "virtual" and settings.cluster is not None:
        return "cluster", ConfigError(f"{settings.cluster!r} is not allowed with the engine {settings.engine}, it needs engine virtual")
    if settings.engine != "virtual" and not settings.gradients:
        return "gradients", ConfigError(f"leaving gradients out is not allowed with the engine {settings.engine}, it needs engine virtual")
    if settings.engine == "virtual" and settings.route == "collective":
        why = "collective is not allowed with the engine virtual, whose workers share one process and pretend their network"
        return "route", ConfigError(f"{why}; leave the route out, or name servers")
    if settings.engine in ("virtual", "ray") and settings.server_device != "cpu":
        why = f"{settings.server_device!r} is not allowed with the engine {settings.engine}, whose servers stay on the cpu"
        return "server_device", ConfigError(f"{why}; it needs engine local or torchrun")
    for slow in settings.slow:
        if slow.worker >= settings.most_workers:
            return "slow", ConfigError(
                f"worker {slow.worker} does not exist, with {settings.most_workers} it must be 0 to {settings.most_workers - 1}"
            )
    return None


def _check_elastic(settings: Settings) -> tuple[str, ConfigError] | None:
    """What only the Ray engine has, and that its bounds hold the number of workers."""
    for name in ("min_workers", "max_workers", "address"):
        value = getattr(settings, name)
        if value is not None and settings.engine != "ray":
            return name, ConfigError(f"{value} is not allowed with the engine {settings.engine}, it needs engine ray")
    if settings.least_workers > settings.workers:
        return "min_workers", ConfigError(
            f"{settings.least_workers} is not allowed, it must be at most the number of workers, {settings.workers}"
        )
    if settings.most_workers < settings.workers:
        return "max_workers", ConfigError(
            f"{settings.most_workers} is not allowed, it must be at least the number of workers, {settings.workers}"
        )
    return None
