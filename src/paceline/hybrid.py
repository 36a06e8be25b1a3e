"""Hybrid: what a run that moves its own pace is told, as one frozen value, and its grammar.

`hybrid` alone is the policy `goodput`. `hybrid:PACE@SHARE(,PACE@SHARE)*` is a schedule, `hybrid:NAME[:ARG]*` a policy,
`hybrid:FILE.py:FUNC` a user's own; `dssp:LO:HI` is a policy around `ssp:LO`. What a policy decides is in `logic/policies/`.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Literal

import msgspec

from paceline.errors import ConfigError
from paceline.pace import LrRule, Pace, check_lr_rule, check_pace, pace_names, parse_pace

PolicyName = Literal["goodput", "syncswitch", "stragglers", "adasync", "dssp", "schedule", "user"]

DEFAULT_SYNC_SHARE = 0.1
"""Published: 5 to 25 % of the work in sync first cost no accuracy, less did (Sync-Switch, Li et al. 2021)."""
MOST_LEAD = 1_000_000


class Stage(msgspec.Struct, frozen=True):
    """From share `share` of the run's work on, `pace`."""

    share: float
    pace: Pace


class Hybrid(msgspec.Struct, frozen=True, tag=True):
    """A policy and what it was told. `name` is the whole text; `start` is the pace that the run begins with.

    `sync_share` is the part of the work before which no pace that keeps stale gradients is chosen. `stages` are a schedule's;
    `quorum` is adasync's first one, 0 for half of the workers; `leads` are dssp's two bounds; `file` and `function` name a
    user's policy.
    """

    name: str
    policy: PolicyName
    start: Pace
    sync_share: float = DEFAULT_SYNC_SHARE
    stages: tuple[Stage, ...] = ()
    quorum: int = 0
    leads: tuple[int, int] = (0, 0)
    file: str = ""
    function: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def gives_shares(self) -> bool:
        """Whether the policy itself says which part of a batch each worker gets."""
        return self.policy == "stragglers"


Mode = Pace | Hybrid

_POLICIES: tuple[tuple[str, str], ...] = (
    ("hybrid", "the run moves its own pace to what trains fastest, as it measures (goodput)"),
    ("hybrid:goodput:SHARE", "the same, with a share of the work in sync paces first (0.1)"),
    ("hybrid:syncswitch:SHARE", "sync for a share of the work (0.1), never before the learning rate's warm-up ends, then async"),
    ("hybrid:stragglers:SHARE", "shares by speed, then not waiting for a straggler, then async after a share of the work (0.1)"),
    ("hybrid:adasync:K", "a quorum that grows from K (half of the workers) as the loss falls"),
    ("hybrid:PACE@SHARE,...", "a schedule by shares of the work, as in hybrid:sync@0,async@0.1"),
    ("hybrid:FILE.py:FUNC", "your own policy(signals, history)"),
    ("dssp:lo:hi", "as ssp, each worker's bound moved between lo and hi by what it would wait"),
)


def mode_names() -> list[tuple[str, str]]:
    """Every pace and policy as it is written, with a line on what it means."""
    return [*pace_names(), *_POLICIES]


def parse_mode(text: str) -> Mode:
    """The pace or policy that `text` names.

    >>> parse_mode("ssp:3").name, parse_mode("hybrid").policy
    ('ssp:3', 'goodput')
    >>> [stage.share for stage in parse_mode("hybrid:sync@0,async@0.1").stages]
    [0.0, 0.1]

    Raises ConfigError when the name, an argument or a key is not known or out of bounds.
    """
    text = text.strip()
    name, _, rest = text.partition(":")
    if name == "dssp":
        return _dssp(text, rest)
    if name != "hybrid":
        if name.partition(",")[0] not in {shown.partition(":")[0] for shown, _ in pace_names()}:
            raise ConfigError(f"unknown pace {text!r}, allowed: {', '.join(shown for shown, _ in mode_names())}")
        return parse_pace(text)
    if text == "hybrid":
        return Hybrid(text, "goodput", parse_pace("sync"))
    if "@" in rest:
        return _schedule(text, rest)
    if re.search(r"\.py(:|$)", rest):
        return _user(text, rest)
    return _named(text, rest)


def check_mode(mode: Mode, num_workers: int) -> list[str]:
    """Raise ConfigError when `mode` cannot work with `num_workers`; return warnings, a sentence each."""
    if isinstance(mode, Pace):
        return check_pace(mode, num_workers)
    if mode.quorum > num_workers:
        raise ConfigError(f"pace {mode.name!r} begins with {mode.quorum} workers, with {num_workers} it must be 1 to {num_workers}")
    paces = {stage.pace.name: stage.pace for stage in mode.stages} or {mode.start.name: mode.start}
    return [sentence for pace in paces.values() for sentence in check_pace(pace, num_workers)]


def start_of(mode: Mode) -> Pace:
    """The pace that a run of this mode begins with."""
    return mode if isinstance(mode, Pace) else mode.start


def _share(text: str, name: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"pace {name!r}: {text!r} is not a share of the work, it must be a number from 0 to 1")
    return share


def _named(name: str, rest: str) -> Hybrid:
    policy, *args = rest.split(":")
    if len(args) > 1:
        raise ConfigError(f"pace {name!r} has too much, hybrid:{policy} takes one argument at most")
    start = parse_pace("sync")
    match policy:
        case "goodput" | "syncswitch" | "stragglers":
            return Hybrid(name, policy, start, _share(args[0], name) if args else DEFAULT_SYNC_SHARE)
        case "adasync":
            quorum = 0
            if args:
                if not re.fullmatch(r"[0-9]{1,6}", args[0]) or int(args[0]) < 1:
                    raise ConfigError(f"pace {name!r}: {args[0]!r} is not a quorum, it must be a whole number from 1 on")
                quorum = int(args[0])
            return Hybrid(name, policy, start, quorum=quorum)
        case _:
            shown = ", ".join(shown for shown, _ in _POLICIES)
            raise ConfigError(f"pace {name!r}: {policy!r} is not a policy, allowed: {shown}")


def _schedule(name: str, rest: str) -> Hybrid:
    stages: list[Stage] = []
    for item in _items(rest):
        text, _, share = item.rpartition("@")
        if not text:
            raise ConfigError(f"pace {name!r}: {item!r} has no share, write PACE@SHARE as in sync@0,async@0.1")
        stages.append(Stage(_share(share, name), parse_pace(text)))
    if stages[0].share != 0.0:
        raise ConfigError(f"pace {name!r}: the first share must be 0, got {stages[0].share:g}")
    for before, after in pairwise(stages):
        if after.share <= before.share:
            raise ConfigError(f"pace {name!r}: shares must grow, {after.share:g} comes after {before.share:g}")
    return Hybrid(name, "schedule", stages[0].pace, 0.0, tuple(stages))


def _items(rest: str) -> list[str]:
    """The stages of a schedule as `PACE,KEY=VALUE@SHARE`; a piece KEY=VALUE belongs to the pace before it.

    >>> _items("sync@0,ksync:3,grace_s=0.1@0.2"), _items("ksync:3@0,grace_s=0.1,async@0.2")
    (['sync@0', 'ksync:3,grace_s=0.1@0.2'], ['ksync:3,grace_s=0.1@0', 'async@0.2'])
    """
    items: list[str] = []
    for piece in rest.split(","):
        if "=" in piece and items:
            head, at, share = items[-1].rpartition("@")
            bare, own_at, own_share = piece.rpartition("@")
            if at and not own_at:
                items[-1] = f"{head},{piece}@{share}"
            elif own_at and not at:
                items[-1] = f"{items[-1]},{bare}@{own_share}"
            else:
                items[-1] = f"{items[-1]},{piece}"
        else:
            items.append(piece)
    return items


def _user(name: str, rest: str) -> Hybrid:
    file, _, function = rest.rpartition(":")
    if not file.endswith(".py") or not function.isidentifier():
        raise ConfigError(f"pace {name!r} names no function, write hybrid:FILE.py:FUNC")
    return Hybrid(name, "user", parse_pace("sync"), 0.0, file=file, function=function)


def _dssp(name: str, rest: str) -> Hybrid:
    found = re.fullmatch(r"([0-9]{1,7}):([0-9]{1,7})", rest)
    if found is None or not int(found[1]) <= int(found[2]) <= MOST_LEAD:
        raise ConfigError(f"pace {name!r} is written dssp:LO:HI, two leads with LO at most HI, as in dssp:3:15")
    low, high = int(found[1]), int(found[2])
    return Hybrid(name, "dssp", parse_pace(f"ssp:{low}"), 0.0, leads=(low, high))


def check_mode_lr_rule(mode: Mode, lr_rule: LrRule | None) -> None:
    """Raise ConfigError when `lr_rule` would scale a fixed pace twice; a policy's paces that weigh by staleness do without it."""
    if isinstance(mode, Pace):
        check_lr_rule(mode, lr_rule)
