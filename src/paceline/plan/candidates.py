"""A plan as a value: the candidates with all that is known of each, and what finding it out took."""

from __future__ import annotations

import msgspec

from paceline.plan.forecast import Forecast
from paceline.plan.profile import Profile
from paceline.plan.progress import Point
from paceline.plan.ranking import Arrival
from paceline.plan.target import Target


class Flown(msgspec.Struct, frozen=True):
    """What a pace's flights took, the mean of its seeds: samples, where on the virtual clock the longest ended, seconds here.

    `full_real_s` is what a whole run would take here, at the speed of the longest flight.
    """

    samples: int
    virtual_s: float
    real_s: float
    full_real_s: float


class Candidate(msgspec.Struct, frozen=True):
    """A pace and all that is known of it; `points` are the target's metric as its longest flight saw it."""

    pace: str
    rank: int
    forecast: Forecast
    arrival: Arrival | None
    points: tuple[Point, ...]
    flown: Flown


class Effort(msgspec.Struct, frozen=True):
    """What the plan took here: the samples that were computed, of those of all candidates' whole runs, and real times.

    `full_s` is what the whole runs would have taken.
    """

    flown_samples: int
    full_samples: int
    flown_s: float
    full_s: float


class Plan(msgspec.Struct, frozen=True):
    """The candidates from best to worst. `target` is None when the script logs nothing; `is_own` when the user named it."""

    script: str
    cluster: str
    num_workers: int
    num_servers: int
    profile: Profile
    target: Target | None
    is_own: bool
    share: float
    seeds: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    effort: Effort


def candidate_paces(num_workers: int) -> list[str]:
    """What is tried when nobody names paces.

    >>> candidate_paces(8), candidate_paces(1)
    (['sync', 'backup:1', 'ksync:4', 'ssp:3', 'async', 'hybrid'], ['sync'])
    """
    if num_workers == 1:
        return ["sync"]
    return list(dict.fromkeys(["sync", "backup:1", f"ksync:{num_workers // 2}", "ssp:3", "async", "hybrid"]))
