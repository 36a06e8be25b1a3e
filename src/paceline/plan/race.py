"""All paces under one seed: each plays the beginning of its run, and goes on to the target while its place is open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path

from paceline.config import Resolved
from paceline.engine.virtual.cluster_file import Loaded
from paceline.plan.forecast import Clock
from paceline.plan.pilots import Flight, Pilot, UntilMet, fly
from paceline.plan.profile import Profile
from paceline.plan.progress import Point, crossing, points_of
from paceline.plan.ranking import Arrival, Need, are_alike, seen, stretched
from paceline.plan.target import Target, Wish

MOST_IN_VAIN = 3
"""Whole runs of the most promising that do not meet the target, before it is called out of reach."""

Tell = Callable[[str], None]


class Race:
    """The flights of one seed, by pace; `clocks` are of jobs that were timed, `folder` is where a flight's lines go."""

    def __init__(
        self, runs: Mapping[str, Resolved], loaded: Loaded, profile: Profile, *, clocks: Mapping[str, Clock], folder: Callable[[str], Path]
    ) -> None:
        self.flights: dict[str, Pilot] = {}
        self.samples: dict[str, int] = dict.fromkeys(runs, 0)
        self.real_s: dict[str, float] = dict.fromkeys(runs, 0.0)
        self._runs, self._loaded, self._profile = runs, loaded, profile
        self._clocks, self._folder = clocks, folder
        self._finished: set[str] = set()

    # --- flying -------------------------------------------------------------------------------------------

    def begin(self, name: str, share: float, wish: Wish | None) -> None:
        """The pilot: its share of the run, and until the metric was logged twice, as long as the script goes on."""
        least = share * self._profile.samples

        def is_enough(flight: Flight) -> bool:
            return flight.clock.samples >= least and (wish is None or len(flight.logged.get(wish.metric, ())) >= 2)

        self._fly(name, is_enough)

    def finish(self, target: Target, tell: Tell) -> None:
        """Let those go on to the target whose place is open, the most promising first."""
        while (name := self._next(target)) is not None:
            tell(f"{name} goes on to {target}")
            self._finished.add(name)
            self._fly(name, UntilMet(target, self._profile.samples))

    def _fly(self, name: str, is_enough: Callable[[Flight], bool]) -> None:
        """From the beginning: a longer flight takes the place of the one before."""
        pilot = fly(self._runs[name], self._loaded, self._folder(name), is_enough)
        self.samples[name] += pilot.samples
        self.real_s[name] += pilot.real_s
        self.flights[name] = pilot

    def _next(self, target: Target) -> str | None:
        """Who flies on: the first, and whoever cannot be told from another one."""
        arrivals = self.arrivals(target)
        if all(one is None for one in arrivals.values()) and len(self._finished) >= MOST_IN_VAIN:
            return None
        open_runs = [name for name in self.flights if self._is_open(name, arrivals)]
        return min(open_runs, key=partial(self._promise, arrivals=arrivals, target=target), default=None)

    def _is_open(self, name: str, arrivals: Mapping[str, Arrival | None]) -> bool:
        mine, others = arrivals[name], [other for rival, other in arrivals.items() if rival != name]
        if name in self._finished or self.flights[name].is_whole or (mine is not None and mine.is_seen):
            return False
        is_first = mine is None or all(other is None or other.time_s >= mine.time_s for other in others)
        return is_first or any(are_alike(mine, other) for other in others)

    def _promise(self, name: str, *, arrivals: Mapping[str, Arrival | None], target: Target) -> tuple[float, float]:
        """Small for a pace that will soon be there: by its predicted time, else by how good it was when the shortest pilot ended."""
        arrival = arrivals[name]
        if arrival is not None:
            return arrival.time_s, 0.0
        end_s = min(flight.clock.now_s for flight in self.flights.values())
        early = [point.value for point in self._points(name, target) if point.t_s <= end_s] or [self._start(target)]
        return inf, -early[-1] if target.rising else early[-1]

    # --- what it comes to ---------------------------------------------------------------------------------

    def end_of_first(self) -> Target | None:
        """What the first pace's flight ended with, its loss if it logs one; None when it logs nothing."""
        logged = next(iter(self.flights.values())).logged
        metric = "loss" if "loss" in logged else next(iter(logged), None)
        if metric is None:
            return None
        points = points_of(logged[metric], self._profile.samples)
        return Target(metric, points[-1].value, rising=points[-1].value >= self._profile.first.get(metric, points[0].value))

    def line(self, name: str, target: Target) -> list[Point]:
        """How the metric went, from the place where training begins."""
        first = self._profile.first.get(target.metric)
        start = [] if first is None or target.is_met(first) else [Point(0.0, 0.0, first)]
        return [*start, *self._points(name, target)]

    def arrivals(self, target: Target) -> dict[str, Arrival | None]:
        """When each pace meets the target: seen, or predicted by one that met it."""
        lines = {name: self.line(name, target) for name in self.flights}
        crossings = {name: crossing(line, target) for name, line in lines.items()}
        met = [name for name, crossed in crossings.items() if crossed is not None]
        shape = max((lines[name] for name in met), key=len, default=None)
        needs: dict[str, Need | None] = {}
        for name, line in lines.items():
            crossed = crossings[name]
            needs[name] = seen(crossed) if crossed else stretched(line[1:], shape, target) if shape and line else None
        return {name: None if need is None else self._arrival(name, need) for name, need in needs.items()}

    def by_speed(self, name: str) -> Arrival:
        """Without a target: when the run is over."""
        samples = float(self._profile.samples)
        time_s = self._clocks.get(name, self.flights[name].clock).time_s(samples)
        return Arrival(samples, time_s, time_s, time_s, is_seen=False, is_planned=True)

    def _start(self, target: Target) -> float:
        """The metric before any training."""
        return self._profile.first.get(target.metric, -inf if target.rising else inf)

    def _points(self, name: str, target: Target) -> list[Point]:
        return points_of(self.flights[name].logged.get(target.metric, ()), self._profile.samples)

    def _arrival(self, name: str, need: Need) -> Arrival:
        flight = self.flights[name]
        clock = flight.clock if need.is_seen or name not in self._clocks else self._clocks[name]
        time_s, low_s, high_s = (clock.time_s(samples) for samples in (need.samples, need.low, need.high))
        return Arrival(need.samples, time_s, low_s, high_s, need.is_seen, need.samples <= self._profile.samples)
