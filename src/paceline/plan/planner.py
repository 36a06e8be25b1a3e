"""A plan: the script is profiled, every candidate is timed and flown for a while, the best are flown to the target, all are ranked."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from tempfile import mkdtemp

from paceline.config import Resolved, Sizes, resolve
from paceline.engine.local.coordinator_main import job_settings
from paceline.engine.virtual.cluster import crew_of
from paceline.engine.virtual.cluster_file import loaded_of
from paceline.engine.virtual.virtual_run import OPEN_PATIENCE_S
from paceline.errors import ConfigError, WriteError
from paceline.hybrid import Hybrid
from paceline.pace import Pace
from paceline.plan.candidates import Candidate, Effort, Plan, candidate_paces
from paceline.plan.forecast import Clock, Forecast, forecast_of, timed
from paceline.plan.pilots import Flight, Pilot, UntilMet, fly
from paceline.plan.profile import Profile, profile_script
from paceline.plan.progress import Point, crossing, points_of
from paceline.plan.ranking import Arrival, Need, ranks, seen, stretched
from paceline.plan.target import Target, Wish

SHARE = 0.2
"""Of a run, for a pilot."""
MOST_FINALS = 3
"""Runs that go on to the target: of the best by their pilots, one after the other, as long as one could be the first."""
LOOK_AHEAD = 1.1
"""A final run that takes so many times the best time is not waited for."""

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
        self._flights: dict[str, Pilot] = {}
        self._clocks: dict[str, Clock] = {}
        self._flown_samples, self._flown_s = 0, 0.0

    def _resolved(self, pace: str) -> Resolved:
        cluster = self._loaded.cluster
        given = {**self._settings, "pace": pace, "engine": "virtual", "cluster": self._cluster, "out": str(self._logs)}
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

    def make(self, *, wish: Wish | None, paces: Sequence[str] = (), share: float = SHARE) -> Plan:
        """The plan. Raises ConfigError for what is not allowed, Unplayable when the script fails."""
        base = self._resolved("sync")
        names = list(paces) or candidate_paces(base.settings.workers)
        runs = {name: self._resolved(name) for name in names}
        self._tell(f"profiling {self._script}")
        self._profile, self._work = profile_script(base, self._folder("profile"), metric=wish.metric if wish else None)
        forecasts = {name: self._timed(name, resolved) for name, resolved in runs.items()}
        for name, resolved in runs.items():
            self._tell(f"pilot of {name}")
            self._fly(name, resolved, self._pilot_limit(share, wish))
        target = self._target(wish, names)
        if target is not None:
            self._finals(runs, target)
        return self._plan(base, forecasts, target, share=share, is_own=wish is not None)

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

    # --- timing and flying --------------------------------------------------------------------------------

    def _timed(self, name: str, resolved: Resolved) -> Forecast | None:
        """A policy moves by what it measures of the training, which counters have not: its numbers come from its pilot."""
        settings = resolved.settings
        if not isinstance(settings.pace, Pace):
            return None
        job = job_settings(resolved)._replace(patience_s=OPEN_PATIENCE_S)
        found = timed(job, self._loaded, self._work, self._profile, seed=settings.seed)
        if found is None:
            return None
        self._clocks[name] = found.clock
        return found.forecast

    def _fly(self, name: str, resolved: Resolved, is_enough: Callable[[Flight], bool]) -> None:
        pilot = fly(resolved, self._loaded, self._folder(name), is_enough)
        self._flown_samples += pilot.samples
        self._flown_s += pilot.real_s
        self._flights[name] = pilot

    def _pilot_limit(self, share: float, wish: Wish | None) -> Callable[[Flight], bool]:
        """A pilot ends after its share of the run; not before the metric was logged twice, as long as the script goes on."""
        least = share * self._profile.samples

        def is_enough(flight: Flight) -> bool:
            return flight.clock.samples >= least and (wish is None or len(flight.logged.get(wish.metric, ())) >= 2)

        return is_enough

    def _target(self, wish: Wish | None, names: Sequence[str]) -> Target | None:
        """The user's, or the loss that the first candidate's pilot ended with."""
        if wish is not None:
            return wish.from_start(self._profile.first.get(wish.metric))
        logged = self._flights[names[0]].logged
        metric = "loss" if "loss" in logged else next(iter(logged), None)
        if metric is None:
            return None
        points = points_of(logged[metric], self._profile.samples)
        return Target(metric, points[-1].value, rising=points[-1].value >= self._profile.first.get(metric, points[0].value))

    def _finals(self, runs: Mapping[str, Resolved], target: Target) -> None:
        """Let those go on to the target that could be first, the most promising first."""
        for _ in range(MOST_FINALS):
            arrivals = self._arrivals(target)
            best_s = min((one.time_s for one in arrivals.values() if one is not None and one.is_seen), default=inf)
            open_runs = [name for name in runs if not self._is_settled(name, arrivals[name], best_s)]
            if not open_runs:
                return
            name = min(open_runs, key=partial(self._promise, arrivals=arrivals, target=target))
            self._tell(f"{name} goes on to {target}")
            self._fly(name, runs[name], UntilMet(target, self._profile.samples, LOOK_AHEAD * best_s))

    def _is_settled(self, name: str, arrival: Arrival | None, best_s: float) -> bool:
        """Whether a longer flight would tell nothing that matters."""
        flight = self._flights[name]
        is_flown = flight.is_whole or (arrival is not None and arrival.is_seen) or flight.clock.now_s > best_s
        return is_flown or (best_s < inf and arrival is not None and arrival.low_s > best_s)

    def _promise(self, name: str, *, arrivals: Mapping[str, Arrival | None], target: Target) -> tuple[float, float]:
        """Small for a pace that will soon be there: by its predicted time, else by how good it was when the shortest pilot ended."""
        arrival = arrivals[name]
        if arrival is not None:
            return arrival.time_s, 0.0
        end_s = min(flight.clock.now_s for flight in self._flights.values())
        early = [point.value for point in self._points(name, target) if point.t_s <= end_s] or [self._start(target)]
        return inf, -early[-1] if target.rising else early[-1]

    # --- what it comes to ---------------------------------------------------------------------------------

    def _start(self, target: Target) -> float:
        """The metric before any training."""
        return self._profile.first.get(target.metric, -inf if target.rising else inf)

    def _points(self, name: str, target: Target) -> list[Point]:
        return points_of(self._flights[name].logged.get(target.metric, ()), self._profile.samples)

    def _line(self, name: str, target: Target) -> list[Point]:
        """The points behind the place where training begins."""
        first = self._profile.first.get(target.metric)
        start = [] if first is None or target.is_met(first) else [Point(0.0, 0.0, first)]
        return [*start, *self._points(name, target)]

    def _arrivals(self, target: Target) -> dict[str, Arrival | None]:
        lines = {name: self._line(name, target) for name in self._flights}
        crossings = {name: crossing(line, target) for name, line in lines.items()}
        met = [name for name, crossed in crossings.items() if crossed is not None]
        shape = max((lines[name] for name in met), key=len, default=None)
        needs: dict[str, Need | None] = {}
        for name, line in lines.items():
            crossed = crossings[name]
            needs[name] = seen(crossed) if crossed else stretched(line[1:], shape, target) if shape and line else None
        return {name: None if need is None else self._arrival(name, need) for name, need in needs.items()}

    def _arrival(self, name: str, need: Need) -> Arrival:
        flight = self._flights[name]
        clock = flight.clock if need.is_seen or name not in self._clocks else self._clocks[name]
        time_s, low_s, high_s = (clock.time_s(samples) for samples in (need.samples, need.low, need.high))
        return Arrival(need.samples, time_s, low_s, high_s, need.is_seen, need.samples <= self._profile.samples)

    def _plan(self, base: Resolved, forecasts: Mapping[str, Forecast | None], target: Target | None, *, share: float, is_own: bool) -> Plan:
        names = list(self._flights)
        arrivals = self._arrivals(target) if target else {name: self._by_speed(name) for name in names}
        places = dict(zip(names, ranks([arrivals[name] for name in names]), strict=True))
        candidates = [
            Candidate(
                name,
                places[name],
                forecasts[name] or forecast_of(self._flights[name].summary, self._flights[name].clock, self._profile, keeps_state=True),
                arrivals[name] if target else None,
                tuple(self._line(name, target)) if target else (),
                self._flights[name].samples,
            )
            for name in names
        ]
        settings, full = base.settings, len(names) * self._profile.samples
        effort = Effort(self._flown_samples, full, self._flown_s, self._flown_s * full / max(1, self._flown_samples))
        order = tuple(sorted(candidates, key=_order))
        cluster = self._cluster or "even workers"
        counts = settings.workers, settings.servers
        return Plan(self._script, cluster, *counts, self._profile, target, is_own, share, order, effort)

    def _by_speed(self, name: str) -> Arrival:
        """Without a target: when the run is over."""
        samples = float(self._profile.samples)
        time_s = self._clocks.get(name, self._flights[name].clock).time_s(samples)
        return Arrival(samples, time_s, time_s, time_s, is_seen=False, is_planned=True)


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
