"""A plan: the script is profiled, every candidate is timed and flown for a while and then to the target, all are ranked."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import mkdtemp
from typing import NamedTuple

from paceline.config import Resolved, Sizes, resolve
from paceline.engine.local.coordinator_main import job_settings
from paceline.engine.virtual.cluster import crew_of
from paceline.engine.virtual.cluster_file import loaded_of
from paceline.engine.virtual.virtual_run import OPEN_PATIENCE_S
from paceline.errors import ConfigError, WriteError
from paceline.hybrid import Hybrid
from paceline.pace import Pace
from paceline.plan.candidates import Candidate, Effort, Flown, Plan, candidate_paces
from paceline.plan.forecast import Clock, Forecast, Timed, forecast_of, timed
from paceline.plan.profile import Profile, profile_script
from paceline.plan.race import Race
from paceline.plan.ranking import Arrival, mean_arrival, ranks
from paceline.plan.target import Target, Wish

SHARE = 0.1
"""Of a run, for a pilot."""

Tell = Callable[[str], None]


class Planner:
    """One plan in the making. `settings` are those of a run; `tell` is given a line at each stage, `logs` holds what scripts print."""

    def __init__(
        self,
        script: str,
        *,
        cluster: str | None,
        logs: Path,
        args: Sequence[str] = (),
        tell: Tell | None = None,
        settings: Mapping[str, object],
    ) -> None:
        self._script, self._args, self._settings = script, args, settings
        self._cluster, self._loaded, self._logs = cluster, loaded_of(cluster), logs
        self._tell: Tell = tell or (lambda _: None)
        self._forecasts: dict[str, Forecast] = {}

    def _resolved(self, pace: str, *, seed: int | None = None) -> Resolved:
        cluster = self._loaded.cluster
        given = {
            **self._settings,
            **({} if seed is None else {"seed": seed}),
            "pace": pace,
            "engine": "virtual",
            "cluster": self._cluster,
            "out": str(self._logs),
        }
        sizes = Sizes(cluster.default_workers, cluster.servers.count)
        return resolve(cores=8, stamp="", command_line=given, script=self._script, args=self._args, sizes_of=lambda _: sizes)

    def check(self, paces: Sequence[str]) -> None:
        """Raise ConfigError for a script that is not there, or for what a run would refuse, before anything is begun."""
        if not Path(self._script).is_file():
            raise ConfigError(f"the script {self._script} {'is not a file' if Path(self._script).exists() else 'does not exist'}")
        settings = self._resolved("sync").settings
        crew_of(self._loaded.cluster, settings.workers)
        for name in paces:
            mode = self._resolved(name).settings.pace
            if isinstance(mode, Hybrid) and mode.policy == "user":
                raise ConfigError(f"--pace: {name!r} is a policy of your own, which a plan cannot try; name a pace or a policy of Paceline")

    def make(self, *, wish: Wish | None, paces: Sequence[str] = (), share: float = SHARE, num_seeds: int = 1) -> Plan:
        """The plan. Raises ConfigError for what is not allowed, Unplayable when the script fails."""
        base = self._resolved("sync")
        names = list(paces) or candidate_paces(base.settings.workers)
        self._tell(f"profiling {self._script}")
        self._profile, self._work = profile_script(base, self._folder("profile"), metric=wish.metric if wish else None)
        seeds = range(base.settings.seed, base.settings.seed + num_seeds)
        races = [self._race(names, seed, is_first=seed == seeds[0]) for seed in seeds]
        for seed, race in zip(seeds, races, strict=True):
            for name in names:
                self._tell(f"pilot of {name}{_of_seed(seeds, seed)}")
                race.begin(name, share, wish)
        target = races[0].end_of_first() if wish is None else wish.from_start(self._profile.first.get(wish.metric))
        if target is not None:
            for seed, race in zip(seeds, races, strict=True):
                race.finish(target, partial(self._tell_of, _of_seed(seeds, seed)))
        return self._plan(base, names, races, target, Pilots(share, tuple(seeds), is_own=wish is not None))

    def _tell_of(self, end: str, told: str) -> None:
        self._tell(f"{told}{end}")

    def _race(self, names: Sequence[str], seed: int, *, is_first: bool) -> Race:
        """The paces under a seed, each of them timed."""
        runs = {name: self._resolved(name, seed=seed) for name in names}
        clocks: dict[str, Clock] = {}
        for name, resolved in runs.items():
            found = self._timed(resolved)
            if found is not None:
                clocks[name] = found.clock
                self._forecasts.setdefault(name, found.forecast)
        end = "" if is_first else f"-seed-{seed}"
        return Race(runs, self._loaded, self._profile, clocks=clocks, folder=lambda name: self._folder(f"{name}{end}"))

    def _folder(self, name: str) -> Path:
        """Where the script's lines go; a longer flight's take the place of its pilot's."""
        folder = self._logs / re.sub(r"[^\w.=-]", "-", name)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            raise WriteError(f"{folder} could not be written: {error.strerror}") from error
        return folder

    def profile(self) -> Profile:
        """Only what the script costs here."""
        return profile_script(self._resolved("sync"), self._folder("profile"), metric=None)[0]

    def _timed(self, resolved: Resolved) -> Timed | None:
        """A policy moves by what it measures of the training, which counters have not: its numbers come from its pilot."""
        settings = resolved.settings
        if not isinstance(settings.pace, Pace):
            return None
        job = job_settings(resolved)._replace(patience_s=OPEN_PATIENCE_S)
        return timed(job, self._loaded, self._work, self._profile, seed=settings.seed)

    # --- what it comes to ---------------------------------------------------------------------------------

    def _plan(self, base: Resolved, names: Sequence[str], races: Sequence[Race], target: Target | None, pilots: Pilots) -> Plan:
        settings, first = base.settings, races[0]
        arrivals = _means([race.arrivals(target) for race in races]) if target else {name: first.by_speed(name) for name in names}
        places = dict(zip(names, ranks([arrivals[name] for name in names]), strict=True))
        candidates = [
            Candidate(
                name,
                places[name],
                self._forecast(name, first),
                arrivals[name] if target else None,
                tuple(first.line(name, target)) if target else (),
                self._flown(name, races),
            )
            for name in names
        ]
        order = tuple(sorted(candidates, key=_order))
        return Plan(
            self._script,
            self._cluster or "even workers",
            settings.workers,
            settings.servers,
            self._profile,
            target,
            pilots.is_own,
            pilots.share,
            pilots.seeds,
            order,
            _effort(candidates, len(races) * self._profile.samples, len(races)),
        )

    def _forecast(self, name: str, race: Race) -> Forecast:
        flight = race.flights[name]
        return self._forecasts.get(name) or forecast_of(flight.summary, flight.clock, self._profile, keeps_state=True)

    def _flown(self, name: str, races: Sequence[Race]) -> Flown:
        """The mean of the seeds."""
        last = [race.flights[name] for race in races]
        return Flown(
            samples=round(fmean(race.samples[name] for race in races)),
            virtual_s=fmean(flight.clock.now_s for flight in last),
            real_s=fmean(race.real_s[name] for race in races),
            full_real_s=fmean(flight.real_s * self._profile.samples / max(1, flight.samples) for flight in last),
        )


class Pilots(NamedTuple):
    """How far and with which seeds; `is_own`: to a target that the user named."""

    share: float
    seeds: tuple[int, ...]
    is_own: bool


def _means(races: Sequence[Mapping[str, Arrival | None]]) -> dict[str, Arrival | None]:
    return {name: mean_arrival([race[name] for race in races]) for name in races[0]}


def _effort(candidates: Sequence[Candidate], whole: int, num_seeds: int) -> Effort:
    """What all flights took, and all whole runs would."""
    samples, real_s, full_s = (
        num_seeds * sum(getattr(one.flown, name) for one in candidates) for name in ("samples", "real_s", "full_real_s")
    )
    return Effort(samples, len(candidates) * whole, real_s, full_s)


def _of_seed(seeds: range, seed: int) -> str:
    return f" with seed {seed}" if len(seeds) > 1 else ""


def _order(candidate: Candidate) -> tuple[int, float]:
    """By rank; within one the soonest first. The soonest of all has rank 1, so it comes first."""
    arrival = candidate.arrival
    return candidate.rank, candidate.forecast.run_s if arrival is None else arrival.time_s


def profile_alone(script: str, args: Sequence[str]) -> Profile:
    """What a script costs here, without a cluster. Raises ConfigError and Unplayable."""
    Planner(script, cluster=None, logs=Path(), args=args, settings={"workers": 1}).check(())
    logs = Path(mkdtemp(prefix="paceline-"))  # which stays when the script fails, since its log is there
    planner = Planner(script, cluster=None, logs=logs, args=args, settings={"workers": 1})
    profile = planner.profile()
    shutil.rmtree(logs, ignore_errors=True)
    return profile
