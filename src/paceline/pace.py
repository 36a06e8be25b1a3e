"""The pace: one frozen value for every consistency setting of the literature, and its grammar.

`PACE := NAME(:ARG)*(,KEY=VALUE)*`. A named mode is a point of the space, never a class of its own.
Nothing here decides anything: the rules that read a pace are in `logic/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Literal

import msgspec

from paceline.errors import ConfigError


class Late(Enum):
    """What happens to a gradient whose base version is not the newest."""

    DROP = "drop"
    KEEP = "keep"


class Quorum(msgspec.Struct, frozen=True):
    """How many gradients make an update, as a rule of the number N of live workers.

    `all` is exactly N; `count` is `value`; `minus` is max(1, N - value); `part` is max(1, N // value).
    """

    rule: Literal["all", "count", "minus", "part"]
    value: int = 0

    def of(self, num_workers: int) -> int:
        """The quorum for `num_workers` live workers, at least 1.

        >>> Quorum("minus", 1).of(4), Quorum("part", 2).of(5), Quorum("all").of(3)
        (3, 2, 3)
        """
        match self.rule:
            case "all":
                return max(1, num_workers)
            case "count":
                return self.value
            case "minus":
                return max(1, num_workers - self.value)
            case "part":
                return max(1, num_workers // self.value)


class Weighting(msgspec.Struct, frozen=True):
    """The factor omega(tau) on a gradient of staleness tau.

    `none` is 1; `inverse` is 1 / max(1, tau) (Zhang, Gupta, Lian, Liu 2016);
    `polynomial` is (1 + tau) ** -exponent (FedAsync, Xie et al. 2019).
    """

    rule: Literal["none", "inverse", "polynomial"] = "none"
    exponent: float = 1.0


ALL = Quorum("all")
LrRule = Literal["linear", "sqrt", "none"]


class Pace(msgspec.Struct, frozen=True):
    """The consistency setting in force between two updates.

    `max_lead` and `max_staleness` are counted in steps and updates; None is no bound. `grace_s` is how long
    a fold waits for more once its quorum is there. `lr_rule` None leaves the choice to the optimizer's class.
    """

    name: str
    quorum: Quorum = ALL
    distinct: bool = True
    late: Late = Late.DROP
    max_lead: int | None = None
    max_staleness: int | None = None
    grace_s: float = 0.0
    weighting: Weighting = Weighting()
    lr_rule: LrRule | None = None

    @property
    def reads_in_place(self) -> bool:
        """Whether workers may compute on the shards' own memory: true when no update is made while anyone computes."""
        return self.quorum.rule == "all" and self.distinct


def _whole(name: str, text: str, *, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"pace {name!r}: {text!r} is not a whole number") from None
    if value < least:
        raise ConfigError(f"pace {name!r}: {value} is not allowed, the least is {least}")
    return value


def _sync(name: str) -> Pace:
    return Pace(name)


def _backup(name: str, b: str) -> Pace:
    return Pace(name, Quorum("minus", _whole(name, b, least=0)))


def _ksync(name: str, k: str) -> Pace:
    return Pace(name, Quorum("count", _whole(name, k, least=1)))


def _kbatchsync(name: str, k: str) -> Pace:
    return Pace(name, Quorum("count", _whole(name, k, least=1)), distinct=False)


def _kasync(name: str, k: str) -> Pace:
    return Pace(name, Quorum("count", _whole(name, k, least=1)), late=Late.KEEP)


def _kbatchasync(name: str, k: str) -> Pace:
    return Pace(name, Quorum("count", _whole(name, k, least=1)), distinct=False, late=Late.KEEP)


def _softsync(name: str, n: str) -> Pace:
    part = Quorum("part", _whole(name, n, least=1))
    return Pace(name, part, distinct=False, late=Late.KEEP, weighting=Weighting("inverse"))


def _async(name: str) -> Pace:
    return Pace(name, Quorum("count", 1), distinct=False, late=Late.KEEP, weighting=Weighting("polynomial"))


def _ssp(name: str, s: str) -> Pace:
    lead = _whole(name, s, least=0)
    return Pace(name, Quorum("count", 1), distinct=False, late=Late.KEEP, max_lead=lead)


_NAMES: dict[str, tuple[Callable[..., Pace], tuple[str, ...], str]] = {
    "sync": (_sync, (), "every worker's gradient is in every update"),
    "backup": (_backup, ("b",), "as sync, without waiting for the b slowest"),
    "ksync": (_ksync, ("k",), "the first k workers make an update, late gradients are dropped"),
    "kbatchsync": (_kbatchsync, ("k",), "the first k gradients of anyone, late ones are dropped"),
    "kasync": (_kasync, ("k",), "the first k workers make an update, late gradients go into the next"),
    "kbatchasync": (_kbatchasync, ("k",), "the first k gradients of anyone, late ones go into the next"),
    "softsync": (_softsync, ("n",), "N/n gradients of anyone, each weighted by 1 / staleness"),
    "async": (_async, (), "each gradient is applied when it arrives, nobody waits"),
    "ssp": (_ssp, ("s",), "as async, no worker more than s steps ahead of the slowest"),
}

_WEIGHTINGS = ("none", "inverse", "polynomial")
_LR_RULES = ("linear", "sqrt", "none")


def pace_names() -> list[tuple[str, str]]:
    """Every known pace as it is written (`ksync:k`) with a line on what it means."""
    return [(":".join((name, *args)), meaning) for name, (_, args, meaning) in _NAMES.items()]


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0.0 <= value < math.inf):
        raise ConfigError(f"pace {name!r}: grace_s={text} is not a time in seconds, 0 or more")
    return value


def _with_key(pace: Pace, key: str, text: str) -> Pace:
    match key:
        case "max_lead" | "max_staleness":
            value = None if text == "inf" else _whole(f"{pace.name},{key}={text}", text, least=0)
            return msgspec.structs.replace(pace, **{key: value})
        case "grace_s":
            return msgspec.structs.replace(pace, grace_s=_seconds(pace.name, text))
        case "weighting":
            rule, _, exponent = text.partition(":")
            if rule not in _WEIGHTINGS or (exponent and rule != "polynomial"):
                raise ConfigError(f"pace {pace.name!r}: weighting={text} is not known, allowed: {', '.join(_WEIGHTINGS)}[:A]")
            return msgspec.structs.replace(pace, weighting=Weighting(rule, _exponent(pace.name, exponent)))
        case "lr_rule":
            if text not in _LR_RULES:
                raise ConfigError(f"pace {pace.name!r}: lr_rule={text} is not known, allowed: {', '.join(_LR_RULES)}")
            return msgspec.structs.replace(pace, lr_rule=text)
        case _:
            allowed = "max_lead, max_staleness, grace_s, weighting, lr_rule"
            raise ConfigError(f"pace {pace.name!r}: {key!r} is not a key, allowed: {allowed}")


def _exponent(name: str, text: str) -> float:
    try:
        value = float(text or 1.0)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 10.0:
        raise ConfigError(f"pace {name!r}: the exponent {text!r} of its weighting must be 0 to 10")
    return value


def parse_pace(text: str) -> Pace:
    """The pace that `text` names, its whole text kept as its name.

    >>> parse_pace("ssp:3").max_lead
    3
    >>> parse_pace("ksync:3,grace_s=0.1").grace_s
    0.1

    Raises ConfigError when the name, an argument or a key is not known or out of bounds.
    """
    head, *pairs = text.strip().split(",")
    name, *args = head.split(":")
    known = _NAMES.get(name)
    if known is None:
        raise ConfigError(f"unknown pace {text!r}; allowed: {', '.join(shown for shown, _ in pace_names())}")
    make, wanted, _ = known
    if len(args) != len(wanted):
        shown = ":".join((name, *wanted))
        raise ConfigError(f"pace {text!r} takes {len(wanted)} argument(s), written {shown}; got {len(args)}")
    pace = make(text.strip(), *args)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"pace {text!r}: {pair!r} is not KEY=VALUE")
        pace = _with_key(pace, key.strip(), value.strip())
    if pace.weighting.rule != "none" and pace.lr_rule in ("linear", "sqrt"):
        raise ConfigError(f"pace {text!r} weighs gradients by staleness, so lr_rule must be none, not {pace.lr_rule}")
    return pace


def check_pace(pace: Pace, num_workers: int) -> list[str]:
    """Raise ConfigError when `pace` cannot work with `num_workers`; return warnings, a sentence each."""
    quorum, rule = pace.quorum.of(num_workers), pace.quorum
    if pace.distinct and rule.rule == "count" and quorum > num_workers:
        raise ConfigError(f"pace {pace.name!r}: a quorum of {quorum} different workers needs at least {quorum} workers, got {num_workers}")
    if rule.rule == "part" and rule.value > num_workers:
        raise ConfigError(f"pace {pace.name!r}: its argument must be 1..{num_workers} for {num_workers} workers, got {rule.value}")
    if rule.rule == "minus" and rule.value >= num_workers:
        raise ConfigError(f"pace {pace.name!r}: at most {num_workers - 1} of {num_workers} workers can be backups, got {rule.value}")
    steady = math.ceil(num_workers / quorum) - 1
    if pace.late is Late.KEEP and pace.max_staleness is not None and pace.max_staleness < steady:
        return [f"max_staleness={pace.max_staleness} is below {steady}, the steady staleness of {num_workers} equal workers: many gradients will be refused"]
    return []
