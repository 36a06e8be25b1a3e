"""The pace: one frozen value for every consistency setting of the literature, and its grammar.

`PACE := NAME(:ARG)*(,KEY=VALUE)*`. A named mode is a point of the space, never a class of its own.
Nothing here decides anything: the rules that read a pace are in `logic/`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum
from typing import Literal

import msgspec

from paceline.errors import ConfigError

LrRule = Literal["linear", "sqrt", "none"]
WeightingRule = Literal["none", "inverse", "polynomial"]
CorrectionRule = Literal["none", "dc", "dca", "gap", "bound"]
Momentum = Literal["keep", "ramp", "zero"]

MOST_COUNT = 1_000_000
MOST_GRACE_S = 3600.0
MOST_STRENGTH = 1e6


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
    """The factor omega(tau) on a gradient of staleness tau, which counts as at least that of equal workers.

    `none` is 1; `inverse` is 1 / max(1, tau) (Zhang, Gupta, Lian, Liu 2016);
    `polynomial` is (1 + tau) ** -exponent (FedAsync, Xie et al. 2019).
    """

    rule: WeightingRule = "none"
    exponent: float = 1.0


class Correction(msgspec.Struct, frozen=True):
    """What is done to a stale gradient g before its fold; w is now, w0 what its worker had read, d = w - w0.

    `dc` is g + strength * g*g*d (DC-ASGD, Zheng et al. 2017); `dca` divides that strength by the root of the running
    mean of the worker's g*g; `gap` is g / (1 + |d| / c), c the running mean of an update's length per element, times
    `strength` (Barkai et al. 2019); `bound` lets an update move at most by min(1, strength / |d|^2) of the learning rate
    (Dutta et al. 2018).
    """

    rule: CorrectionRule = "none"
    strength: float = 0.0


ALL = Quorum("all")


class Pace(msgspec.Struct, frozen=True, tag=True):
    """The consistency setting in force between two updates.

    `max_lead` and `max_staleness` are counted in steps and updates; None is no bound. `grace_s` is how long
    a fold waits for more once its quorum is there. `lr_rule` None leaves the choice to the optimizer's class.
    `momentum` is what a change to this pace does to the optimizer's momentum: `keep` it, set it to `zero`, or `ramp`: the
    coefficient begins at a quarter and is whole again after a share of the work (Sync-Switch, Li et al. 2021, tried both).
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
    correction: Correction = Correction()
    momentum: Momentum = "keep"

    def __str__(self) -> str:
        return self.name

    @property
    def reads_in_place(self) -> bool:
        """Whether workers may compute on the shards' own memory: true when no update is made while anyone computes."""
        return self.quorum.rule == "all" and self.distinct

    def steady_staleness(self, num_workers: int) -> int:
        """The staleness, in updates, of the gradients of `num_workers` equal workers that never wait for each other.

        >>> parse_pace("softsync:15").steady_staleness(30), parse_pace("sync").steady_staleness(30)
        (14, 0)
        """
        return math.ceil(num_workers / self.quorum.of(num_workers)) - 1

    @property
    def is_collective(self) -> bool:
        """Whether a group of workers can make its updates among themselves: of all of them at once, and nothing but summed."""
        return self.reads_in_place and self.late is Late.DROP and self.correction.rule == "none" and self.momentum == "keep"


def _whole(name: str, text: str, *, least: int) -> int:
    if not re.fullmatch(r"-?[0-9]{1,12}", text) or not least <= int(text) <= MOST_COUNT:
        raise ConfigError(f"pace {name!r}: {text!r} is not allowed, it must be a whole number from {least} to {MOST_COUNT}")
    return int(text)


def _number(name: str, text: str, *, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= most:
        raise ConfigError(f"pace {name!r}: {text!r} is not allowed, it must be a number from 0 to {most:g}")
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
    "ksync": (_ksync, ("k",), "the first k workers, late gradients are dropped"),
    "kbatchsync": (_kbatchsync, ("k",), "the first k gradients, late ones are dropped"),
    "kasync": (_kasync, ("k",), "the first k workers, late gradients go into the next"),
    "kbatchasync": (_kbatchasync, ("k",), "the first k gradients, late ones go into the next"),
    "softsync": (_softsync, ("n",), "N/n gradients of anyone, each weighted by 1 / staleness"),
    "async": (_async, (), "each gradient is applied when it arrives, nobody waits"),
    "ssp": (_ssp, ("s",), "as async, no worker more than s steps ahead of the slowest"),
}

_WEIGHTINGS: dict[str, WeightingRule] = {"none": "none", "inverse": "inverse", "polynomial": "polynomial"}
_LR_RULES: dict[str, LrRule] = {"linear": "linear", "sqrt": "sqrt", "none": "none"}
_CORRECTIONS: dict[str, tuple[CorrectionRule, float]] = {
    "none": ("none", 0.0), "dc": ("dc", 0.04), "dca": ("dca", 2.0), "gap": ("gap", 1.0), "bound": ("bound", 1.0)
}  # fmt: skip
"""By word: the rule and the strength that is meant without a number (those of the papers, 1 where it is a ratio)."""
_MOMENTA: dict[str, Momentum] = {"keep": "keep", "ramp": "ramp", "zero": "zero"}
KEYS = ("max_lead", "max_staleness", "grace_s", "weighting", "lr_rule", "correction", "momentum")
"""What may follow a pace's name as KEY=VALUE."""


def pace_names() -> list[tuple[str, str]]:
    """Every known pace as it is written (`ksync:k`) with a line on what it means."""
    return [(":".join((name, *args)), meaning) for name, (_, args, meaning) in _NAMES.items()]


def _bound(name: str, text: str) -> int | None:
    return None if text == "inf" else _whole(name, text, least=0)


def _weighting(name: str, text: str) -> Weighting:
    word, colon, exponent = text.partition(":")
    rule = _WEIGHTINGS.get(word)
    if rule is None or (colon and rule != "polynomial"):
        raise ConfigError(f"pace {name!r}: weighting={text} is not known, allowed: none, inverse, polynomial, polynomial:EXPONENT")
    return Weighting(rule, _number(name, exponent, most=10.0)) if colon else Weighting(rule)


def _lr_rule(name: str, text: str) -> LrRule:
    if text not in _LR_RULES:
        raise ConfigError(f"pace {name!r}: lr_rule={text} is not known, allowed: {', '.join(_LR_RULES)}")
    return _LR_RULES[text]


def _correction(name: str, text: str) -> Correction:
    word, colon, strength = text.partition(":")
    if word not in _CORRECTIONS or (colon and word == "none"):
        allowed = ", ".join(word if word == "none" else f"{word}, {word}:STRENGTH" for word in _CORRECTIONS)
        raise ConfigError(f"pace {name!r}: correction={text} is not known, allowed: {allowed}")
    rule, usual = _CORRECTIONS[word]
    return Correction(rule, _number(name, strength, most=MOST_STRENGTH) if colon else usual)


def _momentum(name: str, text: str) -> Momentum:
    if text not in _MOMENTA:
        raise ConfigError(f"pace {name!r}: momentum={text} is not known, allowed: {', '.join(_MOMENTA)}")
    return _MOMENTA[text]


def _with_key(pace: Pace, key: str, text: str) -> Pace:
    match key:
        case "max_lead" | "max_staleness":
            return msgspec.structs.replace(pace, **{key: _bound(pace.name, text)})
        case "grace_s":
            return msgspec.structs.replace(pace, grace_s=_number(pace.name, text, most=MOST_GRACE_S))
        case "weighting":
            return msgspec.structs.replace(pace, weighting=_weighting(pace.name, text))
        case "lr_rule":
            return msgspec.structs.replace(pace, lr_rule=_lr_rule(pace.name, text))
        case "correction":
            return msgspec.structs.replace(pace, correction=_correction(pace.name, text))
        case "momentum":
            return msgspec.structs.replace(pace, momentum=_momentum(pace.name, text))
        case _:
            raise ConfigError(f"pace {pace.name!r}: {key!r} is not a key, allowed: {', '.join(KEYS)}")


def parse_pace(text: str) -> Pace:
    """The pace that `text` names, its whole text kept as its name.

    >>> parse_pace("ssp:3").max_lead
    3
    >>> parse_pace("ksync:3,grace_s=0.1").grace_s
    0.1

    Raises ConfigError when the name, an argument or a key is not known or out of bounds.
    """
    text = text.strip()
    head, *pairs = text.split(",")
    name, *args = head.split(":")
    known = _NAMES.get(name)
    if known is None:
        raise ConfigError(f"unknown pace {text!r}, allowed: {', '.join(shown for shown, _ in pace_names())}")
    make, wanted, _ = known
    if len(args) != len(wanted):
        raise ConfigError(f"pace {text!r} is not complete or has too much, it is written {':'.join((name, *wanted))}")
    pace, seen = make(text, *args), set[str]()
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise ConfigError(f"pace {text!r}: {pair!r} is not KEY=VALUE, allowed keys: {', '.join(KEYS)}")
        if key in seen:
            raise ConfigError(f"pace {text!r}: {key} is given twice, once is allowed")
        seen.add(key)
        pace = _with_key(pace, key, value)
    check_lr_rule(pace, pace.lr_rule)
    return pace


def check_lr_rule(pace: Pace, lr_rule: LrRule | None) -> None:
    """Raise ConfigError when `lr_rule` would scale by the quorum what `pace` already scales by staleness."""
    if pace.weighting.rule != "none" and lr_rule in ("linear", "sqrt"):
        raise ConfigError(f"pace {pace.name!r} weighs gradients by staleness, so the learning rate rule must be none, got {lr_rule}")


def check_pace(pace: Pace, num_workers: int) -> list[str]:
    """Raise ConfigError when `pace` cannot work with `num_workers`; return warnings, a sentence each."""
    rule, quorum = pace.quorum, pace.quorum.of(num_workers)
    if pace.distinct and quorum > num_workers:
        raise ConfigError(
            f"pace {pace.name!r} needs {quorum} different workers for an update, with {num_workers} it must be 1 to {num_workers}"
        )
    if rule.rule == "part" and rule.value > num_workers:
        raise ConfigError(f"pace {pace.name!r} splits {num_workers} workers in {rule.value} parts, it must be 1 to {num_workers}")
    if rule.rule == "minus" and rule.value >= num_workers:
        raise ConfigError(f"pace {pace.name!r} leaves no worker to wait for, with {num_workers} it must be 0 to {num_workers - 1}")
    steady = pace.steady_staleness(num_workers)
    if pace.late is Late.DROP or pace.max_staleness is None or pace.max_staleness >= steady:
        return []
    bound = f"pace {pace.name!r}: max_staleness {pace.max_staleness} is below {steady}, the steady staleness of {num_workers} equal workers"
    return [f"{bound}, so many gradients will be refused"]
