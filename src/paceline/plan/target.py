"""What a training is to reach: a metric that the script logs, and the value that is good enough."""

from __future__ import annotations

import re
from math import isfinite

import msgspec

from paceline.errors import ConfigError


class Target(msgspec.Struct, frozen=True):
    """`metric` at `value` or better; `rising` says whether more is better."""

    metric: str
    value: float
    rising: bool

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.4g}"

    def is_met(self, value: float) -> bool:
        """Whether a value is good enough.

        >>> Target("loss", 0.5, rising=False).is_met(0.4)
        True
        """
        return value >= self.value if self.rising else value <= self.value


class Wish(msgspec.Struct, frozen=True):
    """A target as the user gave it: `rising` is None where that is to be seen from where the metric begins."""

    metric: str
    value: float
    rising: bool | None = None

    def from_start(self, first: float | None) -> Target:
        """The target for a metric that is `first` before any training, None when that was not seen."""
        rising = self.rising if self.rising is not None else first is None or self.value >= first
        return Target(self.metric, self.value, rising)


def parse_target(text: str) -> Wish:
    """Read `metric=value`, `metric>=value` or `metric<=value`. Raises ConfigError.

    >>> parse_target("accuracy=0.97"), parse_target("loss<=0.2").rising
    (Wish(metric='accuracy', value=0.97, rising=None), False)
    """
    found = re.fullmatch(r"\s*([^<>=]+?)\s*(>=|<=|=)\s*(\S+)\s*", text)
    try:
        value = float(found[3]) if found else None
    except ValueError:
        value = None
    if found is None or value is None or not isfinite(value):
        raise ConfigError(f"--target: {text!r} is not a target, write METRIC=VALUE as in accuracy=0.97, or loss<=0.2")
    return Wish(found[1], value, {">=": True, "<=": False, "=": None}[found[2]])
