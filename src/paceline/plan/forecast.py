"""What a pace costs on a cluster: times, waits, bytes, memory, staleness and failures, of a job that is timed or was flown."""

from __future__ import annotations

from bisect import bisect_left
from statistics import median
from typing import Any, cast

import msgspec

from paceline.engine.virtual.cluster_file import Loaded
from paceline.engine.virtual.timing import simulate
from paceline.engine.virtual.trainee import Workload
from paceline.plan.profile import Profile
from paceline.roles.effects import JobSettings

MOST_STEPS = 20_000
"""Of a timed job: more epochs would look the same."""


class Clock:
    """Folded samples over virtual time, and the workers that were lost."""

    def __init__(self) -> None:
        self._samples: list[int] = [0]
        self._times_s: list[float] = [0.0]
        self.num_lost = 0

    @property
    def samples(self) -> int:
        """Folded so far."""
        return self._samples[-1]

    @property
    def now_s(self) -> float:
        """When the last update was made."""
        return self._times_s[-1]

    def note(self, event: dict[str, object], now_s: float) -> None:
        """An event of the run."""
        if event["event"] == "update":
            self._samples.append(cast("int", event["samples"]))
            self._times_s.append(now_s)
        elif event["event"] == "leave" and event["role"] == "worker" and event["reason"] != "done":
            self.num_lost += 1

    def time_s(self, samples: float) -> float:
        """When so many samples were folded; beyond the end as fast as in its last half."""
        if samples >= self.samples:
            middle = min(bisect_left(self._samples, self.samples / 2), max(0, len(self._samples) - 2))
            rate = max(1e-12, self.samples - self._samples[middle]) / max(1e-12, self.now_s - self._times_s[middle])
            return self.now_s + (samples - self.samples) / rate
        after = max(1, bisect_left(self._samples, samples))
        low, high = self._samples[after - 1], self._samples[after]
        share = (samples - low) / (high - low) if high > low else 1.0
        return self._times_s[after - 1] + share * (self._times_s[after] - self._times_s[after - 1])


class Forecast(msgspec.Struct, frozen=True):
    """A pace in numbers; times are virtual, `run_s` is of the whole run. `step_s` is a worker's, with its waits.

    `wait_share` is of all workers' time; `straggling` is the slowest worker's step over the median's, without waits.
    `memory_*` are estimates: see docs/planner.md. `num_lost` workers failed on the way, and the run went on.
    """

    run_s: float
    samples_per_s: float
    step_s: float
    compute_s: float
    wait_share: float
    straggling: float
    updates_per_epoch: float
    step_bytes: float
    memory_worker_bytes: int
    memory_server_bytes: int
    staleness: dict[str, float]
    refused_share: float
    num_lost: int


class Timed(msgspec.Struct, frozen=True):
    """A forecast and when which sample is folded."""

    forecast: Forecast
    clock: Clock


def timed(settings: JobSettings, loaded: Loaded, work: Workload, profile: Profile, *, seed: int) -> Timed | None:
    """A job of this pace without gradients, of the whole run or as many epochs as say enough; None when it cannot end."""
    epochs = max(1, min(work.num_epochs, MOST_STEPS // max(1, len(work.sizes))))
    clock = Clock()
    outcome = simulate(settings, loaded, work._replace(num_epochs=epochs), seed=seed, watch=clock.note)
    if outcome.end.code:
        return None
    return Timed(forecast_of(outcome.summary, clock, profile, keeps_state=False), clock)


def forecast_of(summary: dict[str, object], clock: Clock, profile: Profile, *, keeps_state: bool) -> Forecast:
    """The numbers of a job; with `keeps_state` its servers keep a state to go back to."""
    told = cast("dict[str, Any]", summary)
    workers = [one for one in told["per_worker"].values() if one["steps"]]
    steps = sum(one["steps"] for one in workers)
    compute_s, wait_s = (sum(one[key] for one in workers) for key in ("compute_s", "wait_s"))
    times_s = sorted(one["compute_s"] / one["steps"] for one in workers)
    worker, server = memory_bytes(profile, told["workers"], told["shards"], keeps_state=keeps_state)
    return Forecast(
        run_s=clock.time_s(profile.samples),
        samples_per_s=clock.samples / clock.now_s if clock.now_s else 0.0,
        step_s=(compute_s + wait_s) / steps,
        compute_s=compute_s / steps,
        wait_share=wait_s / max(1e-12, compute_s + wait_s),
        straggling=times_s[-1] / max(1e-12, median(times_s)),
        updates_per_epoch=told["updates"] * profile.epoch_samples / max(1, clock.samples),
        step_bytes=(told["bytes"]["pushed"] + told["bytes"]["pulled"]) / steps,
        memory_worker_bytes=worker,
        memory_server_bytes=server,
        staleness=told["staleness"],
        refused_share=told["refused"] / steps,
        num_lost=clock.num_lost,
    )


def memory_bytes(profile: Profile, num_workers: int, num_shards: int, *, keeps_state: bool) -> tuple[int, int]:
    """What a worker and a server hold of tensors when every process has a machine of its own.

    A worker: parameters, two gradient buffers, buffers, what a step saves. A server: of its part of the parameters
    these, their optimizer state, one sum, two arrived gradients of each worker, and with `keeps_state` both again.
    """
    model, state = profile.parameter_bytes, profile.optimizer_bytes
    worker = 3 * model + profile.buffer_bytes + profile.activation_bytes
    server = model + state + model + 2 * num_workers * model + (model + state) * keeps_state
    return worker, server // num_shards
