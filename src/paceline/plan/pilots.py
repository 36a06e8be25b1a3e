"""Pilot runs: the beginning of a real run, with its own gradients and in virtual time, and what it logged on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from paceline.config import Resolved
from paceline.engine.local.coordinator_main import job_settings
from paceline.engine.local.serving import shard_of
from paceline.engine.virtual.cluster import crew_of
from paceline.engine.virtual.cluster_file import Loaded
from paceline.engine.virtual.compute import Rhythm, stream
from paceline.engine.virtual.fates import Fates
from paceline.engine.virtual.job import Job
from paceline.engine.virtual.luggage import MemoryFiles
from paceline.engine.virtual.network import Network
from paceline.engine.virtual.player import Player
from paceline.engine.virtual.theatre import Theatre
from paceline.engine.virtual.timeline import Timeline
from paceline.engine.virtual.virtual_run import OPEN_PATIENCE_S
from paceline.errors import ExitCode
from paceline.plan.forecast import Clock
from paceline.plan.profile import Unplayable
from paceline.plan.progress import NUM_WINDOWS, Logged, crossing, points_of
from paceline.plan.target import Target
from paceline.roles.effects import Consult, Effect, End, Metrics


class Flight:
    """The books of a pilot under way: what was logged, the sample clock, and how many workers were lost."""

    def __init__(self) -> None:
        self.logged: dict[str, list[Logged]] = {}
        self.clock = Clock()

    def note(self, event: dict[str, object], now_s: float) -> None:
        """The clock of updates."""
        self.clock.note(event, now_s)

    def take(self, effect: Effect, job: Job) -> None:
        """Keep what was logged."""
        if isinstance(effect, Metrics):
            for name, value in effect.metrics.items():
                self.logged.setdefault(name, []).append(Logged(effect.samples, job.timeline.now_s, value, max(1.0, effect.weight)))
        assert not isinstance(effect, Consult), "nobody here asks a user's policy"


class Pilot(NamedTuple):
    """A pilot that is over: `is_whole` when the run came to its end; `real_s` is what it took here."""

    logged: dict[str, list[Logged]]
    clock: Clock
    summary: dict[str, object]
    is_whole: bool
    real_s: float

    @property
    def samples(self) -> int:
        """How far it came."""
        return self.clock.samples


class UntilMet:
    """Ends a flight that has met the target; looks once in a window of the run of `whole` samples."""

    def __init__(self, target: Target, whole: int) -> None:
        self._target, self._whole = target, whole
        self._looked = 0

    def __call__(self, flight: Flight) -> bool:
        """Whether it is over. A mean of many values must be followed by another one, since the last may be half of one."""
        window = flight.clock.samples * NUM_WINDOWS // self._whole
        logged = flight.logged.get(self._target.metric, ())
        if window == self._looked or not logged:
            return False
        self._looked = window
        points = points_of(logged, self._whole)
        crossed = crossing(points, self._target)
        return crossed is not None and (len(points) == len(logged) or crossed.samples <= points[-2].samples)


def fly(resolved: Resolved, loaded: Loaded, logs: Path, is_enough: Callable[[Flight], bool]) -> Pilot:
    """Play the run of `resolved` on its cluster until it is over, or `is_enough`. Raises Unplayable when it fails."""
    begun_s = perf_counter()
    settings, seed = job_settings(resolved)._replace(patience_s=OPEN_PATIENCE_S), resolved.settings.seed
    timeline, crew, flight = Timeline(), crew_of(loaded.cluster, settings.num_workers), Flight()
    network = Network(timeline, loaded.cluster, crew, settings.num_servers)
    job = Job(settings, timeline, network, build=shard_of, books=flight, luggage=MemoryFiles())
    theatre = Theatre(resolved, logs, _never)

    def make(worker: int, incarnation: int) -> Player:
        group = crew[worker]
        rhythm = Rhythm(group, worker, stream(seed, worker, incarnation), loaded.times_s)
        return Player(job, worker, incarnation, rhythm, theatre=theatre, is_cut_short=group.cancel == "at once")

    def look() -> None:
        nonlocal is_whole
        if job.end is None and is_enough(flight):
            is_whole = False
            job.end = End(ExitCode.OK, "")

    is_whole = True
    Fates(job, crew, loaded.cluster.kill, seed, make)
    with theatre.open(_silent):
        end = job.run(look)
    if end.code:
        raise Unplayable(end, logs)
    return Pilot(flight.logged, flight.clock, job.coordinator.summary(), is_whole, perf_counter() - begun_s)


def _never() -> bool:
    return False


def _silent(worker: int, line: str) -> None:
    """What a script prints stands in its log."""
