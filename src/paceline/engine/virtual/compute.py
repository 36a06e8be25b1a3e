"""How long a virtual worker computes: what its group says, times a factor drawn once per step from a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp
from random import Random

from paceline.engine.virtual.cluster import Group

STRIDE = 7919
"""A prime: workers read a profile from places far apart."""


def stream(seed: int, *names: object) -> Random:
    """A random stream for one purpose: its draws do not depend on who else draws, nor on Python's hashes."""
    return Random("/".join(map(str, (seed, *names))))


class Rhythm:
    """The step times of one incarnation of `worker`; `times_s` has the step times of each file that the group names."""

    def __init__(self, group: Group, worker: int, chance: Random, times_s: Mapping[str, Sequence[float]]) -> None:
        self._group = group
        self._per_sample_s = group.compute * group.times
        self._profile_s = times_s[group.profile] if group.profile is not None else ()
        self._next = worker * STRIDE
        self._draw = _factor(group, chance, times_s)

    def step_s(self, samples: int, now_s: float) -> float:
        """The seconds of a step of so many samples that begins now."""
        if self._profile_s:
            time_s = self._profile_s[self._next % len(self._profile_s)] * self._group.times
            self._next += 1
        else:
            time_s = self._per_sample_s * samples
        if self._draw is not None:
            time_s *= self._draw()
        for slow in self._group.slow:
            if slow.start_s <= now_s < slow.stop_s:
                time_s *= slow.factor
        return time_s


def _factor(group: Group, chance: Random, times_s: Mapping[str, Sequence[float]]) -> Callable[[], float] | None:
    """Draws factors of mean 1; None: always 1."""
    spread = group.spread
    match group.factor:
        case "constant":
            return None
        case "normal":
            return lambda: max(0.0, chance.gauss(1.0, spread))
        case "lognormal":
            return lambda: exp(chance.gauss(0.0, spread) - spread * spread / 2.0)
        case "exponential":
            return lambda: chance.expovariate(1.0)
        case "recorded":
            assert group.recorded is not None
            recorded = times_s[group.recorded]
            mean_s = sum(recorded) / len(recorded)
            factors = [time_s / mean_s for time_s in recorded]
            return lambda: chance.choice(factors)
