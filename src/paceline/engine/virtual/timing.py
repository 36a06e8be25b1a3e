"""A whole job without gradients, in one call: what a pace does on a cluster, in virtual time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

from paceline.engine.virtual.cluster import crew_of
from paceline.engine.virtual.cluster_file import Loaded, at_recorded_times
from paceline.engine.virtual.compute import Rhythm, stream
from paceline.engine.virtual.counting import Counting
from paceline.engine.virtual.fates import Fates
from paceline.engine.virtual.job import Job
from paceline.engine.virtual.network import Network
from paceline.engine.virtual.seams import Books
from paceline.engine.virtual.timeline import Timeline
from paceline.engine.virtual.trainee import Trainee, Workload
from paceline.messages import Serve
from paceline.roles.effects import Effect, End, JobSettings
from paceline.settings import Slow


class Outcome(NamedTuple):
    """How a job ended, and the coordinator's summary, whose `wall_s` is virtual."""

    end: End
    summary: dict[str, object]
    num_events: int


class Watching:
    """Books that only hand each event on."""

    def __init__(self, watch: Callable[[dict[str, object], float], None] | None) -> None:
        self._watch = watch

    def note(self, event: dict[str, object], now_s: float) -> None:
        """Hand the event on."""
        if self._watch is not None:
            self._watch(event, now_s)

    def take(self, effect: Effect, job: Job) -> None:
        """Nothing else is kept."""


def _build(serve: Serve, attachments: tuple[object, ...]) -> Counting:  # noqa: ARG001 - as every store is built
    return Counting()


def timing_job(
    settings: JobSettings,
    loaded: Loaded,
    work: Workload,
    *,
    seed: int,
    books: Books,
    slow: tuple[Slow, ...] = (),
    recorded: str | None = None,
) -> Job:
    """A job of trainees, ready to run; `slow` and `recorded` are of `--slow` and `--compute recorded:FILE`.

    Raises ConfigError when the cluster cannot have the settings' workers, or the file cannot be read.
    """
    loaded = loaded if recorded is None else at_recorded_times(loaded, recorded)
    # a recorded time is for an even part of a batch
    even_samples = 0.0 if recorded is None else work.cut / settings.num_workers
    timeline, cluster = Timeline(), loaded.cluster
    crew = crew_of(cluster, settings.num_workers)
    job = Job(settings, timeline, Network(timeline, cluster, crew, settings.num_servers), build=_build, books=books)

    def make(worker: int, incarnation: int) -> Trainee:
        group = crew[worker]
        rhythm = Rhythm(group, worker, stream(seed, worker, incarnation), loaded.times_s)
        mine = tuple(one for one in slow if one.worker == worker)
        trainee = Trainee(job, worker, incarnation, rhythm, work=work, slow=mine, is_cut_short=group.cancel == "at once")
        trainee.even_samples = even_samples
        return trainee

    Fates(job, crew, cluster.kill, seed, make)
    return job


def simulate(
    settings: JobSettings,
    loaded: Loaded,
    work: Workload,
    *,
    seed: int = 0,
    watch: Callable[[dict[str, object], float], None] | None = None,
) -> Outcome:
    """Run the workload to its end; `watch` is given each event of the run with its virtual time."""
    job = timing_job(settings, loaded, work, seed=seed, books=Watching(watch))
    with uncollected():
        end = job.run()
    return Outcome(end, job.coordinator.summary(), job.timeline.num_events)


@contextmanager
def uncollected() -> Generator[None]:
    """Inside, Python does not look for cycles: counters make none, and thousands of them would be looked through again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
