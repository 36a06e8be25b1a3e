"""What the coordinator hears becomes the signals that a policy sees: O(1) a step, each number over a window that is stated."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import isfinite, sqrt

import msgspec

from paceline.logic.meters import WINDOW_FOLDS, Loss, NoiseScale, Rates, Smoothed, Warmup, mean, quantile, wasted
from paceline.logic.signals import Signals, WorkerSignals

WINDOW_STEPS = 32
"""Steps of a worker behind its times."""
SETTLING_STEPS = 2
"""A worker's first steps pay for its caches and its allocator, and say nothing about the later ones."""
WINDOW_STALENESSES = 512
"""Folded gradients behind the distribution of staleness."""
OPEN_UPDATES = 512
"""Measured updates whose parts of the norms are still awaited; older ones are given up."""


class _Steps:
    """One worker's last steps."""

    def __init__(self) -> None:
        self.compute_s: deque[float] = deque(maxlen=WINDOW_STEPS)
        self.gate_s: deque[float] = deque(maxlen=WINDOW_STEPS)
        self.exchange_s: deque[float] = deque(maxlen=WINDOW_STEPS)
        self.samples: deque[int] = deque(maxlen=WINDOW_STEPS)
        self.num_steps = 0
        self.last_s: float | None = None


class _Open:
    """An update whose parts of the norms come in: its members if they measure the noise, and what has come."""

    def __init__(self, members: Sequence[tuple[int, float]]) -> None:
        self.members = members
        self.gradient = self.parameters = self.change = self.busy_s = 0.0
        self.num_parts = 0


class Gauges:
    """The coordinator tells it what happens, O(1) a step; `read` makes the signals, O(workers).

    >>> gauges = Gauges()
    >>> gauges.joined(0)
    >>> for _ in range(4):
    ...     gauges.stepped(0, compute_s=0.1, wait_s=0.03, exchange_s=0.01, samples=8, now_s=1.0)
    >>> worker = gauges.read("sync", 4, num_at_start=1, now_s=1.1).workers[0]
    >>> round(worker.compute_s, 3), round(worker.gate_s, 3), worker.num_steps
    (0.1, 0.02, 4)
    """

    def __init__(self) -> None:
        self._workers: dict[int, _Steps] = {}
        self._rates = Rates()
        self._stalenesses: deque[int] = deque(maxlen=WINDOW_STALENESSES)
        self._loss = Loss()
        self._noise = NoiseScale()
        self._noise_version = 0
        self._change = Smoothed(WINDOW_FOLDS)
        self._old_change: float | None = None
        self._busy = Smoothed(WINDOW_FOLDS)
        self._warmup = Warmup()
        self._open: dict[int, _Open] = {}
        self._samples = self._num_shards = 0
        self._lr_factor = 1.0
        self._total: int | None = None

    # --- what happens -------------------------------------------------------------------------------------

    def joined(self, worker: int) -> None:
        """`worker` is a member from now on, measured anew."""
        self._workers[worker] = _Steps()

    def left(self, worker: int) -> None:
        """`worker` is no member any more."""
        self._workers.pop(worker, None)

    def stepped(self, worker: int, *, compute_s: float, wait_s: float, exchange_s: float, samples: int, now_s: float) -> None:
        """A gradient of a member has arrived, accepted or not; seconds as in Ready."""
        steps = self._workers.get(worker)
        if steps is None or not isfinite(compute_s + wait_s + exchange_s):
            return
        steps.last_s = now_s
        steps.num_steps += 1
        if steps.num_steps > SETTLING_STEPS:
            steps.compute_s.append(compute_s)
            steps.gate_s.append(max(0.0, wait_s - exchange_s))
            steps.exchange_s.append(exchange_s)
            steps.samples.append(samples)

    def folded(
        self,
        version: int,
        num_samples: int,
        stalenesses: Sequence[int],
        now_s: float,
        *,
        members: Sequence[tuple[int, float]] | None,
        lr_factor: float,
    ) -> None:
        """Update `version` was ordered, of `num_samples` samples; `members` as (samples, 2-norm of the gradient).

        None: servers do not measure it. Empty `members` say that they do not measure the noise: where the fold is clipped.
        """
        self._samples += num_samples
        self._lr_factor = lr_factor
        self._rates.add(num_samples, len(stalenesses), now_s, self.num_workers)
        self._stalenesses.extend(stalenesses)
        if members is not None:
            self._open[version] = _Open(() if any(stalenesses) else members)
            if len(self._open) > OPEN_UPDATES:
                del self._open[next(iter(self._open))]

    def measured(self, version: int, *, gradient: float, parameters: float, change: float, busy_s: float, num_parts: int) -> None:
        """One server's squared norms of `version`, as in Measured; `num_parts` servers answer."""
        one = self._open.get(version)
        if one is None:
            return
        one.gradient += gradient
        one.parameters += parameters
        one.change += change
        one.busy_s = max(one.busy_s, busy_s)
        one.num_parts += 1
        if one.num_parts < num_parts:
            return
        del self._open[version]
        self._num_shards = num_parts
        if version > 1:
            # the first update builds the optimizer, and seconds of that would be smoothed away for hundreds of updates
            self._busy.add(one.busy_s)
        if one.parameters > 0.0 and isfinite(one.change / one.parameters):
            self._change.add(sqrt(one.change / one.parameters))
        if self._noise.add(one.members, one.gradient):
            self._noise_version = version

    def logged(self, loss: float, weight: int) -> None:
        """A worker's script logged a loss, the mean over `weight` samples."""
        self._loss.add(loss, weight, self._samples, self.num_workers)

    def hyper(self, settings: bytes) -> None:
        """The optimizer's settings of the script, as in Ready; empty: unchanged."""
        if settings:
            rates = [group["lr"] for group in msgspec.msgpack.decode(settings, type=list[dict[str, object]]) if "lr" in group]
            self._warmup.add(sum(rate for rate in rates if isinstance(rate, int | float)), self._samples)

    def moved(self) -> None:
        """The pace has changed: rates, stalenesses and trends begin anew; a worker's times and the loss go on."""
        self._rates.begin_anew()
        self._stalenesses.clear()
        self._loss.begin_anew()
        self._old_change, self._change = self._change.mean, Smoothed(WINDOW_FOLDS)

    def resumed(self, now_s: float) -> None:
        """Work begins again: since the last update there was nothing to be done, an evaluation perhaps. Rates leave that out."""
        self._rates.resumed(now_s)

    @property
    def wants_norms(self) -> bool:
        """Whether the noise scale is not known yet, so that more updates are worth measuring."""
        return self._noise.value is None

    def planned(self, total_samples: int | None) -> None:
        """How many samples the run will fold, None while that is not known."""
        self._total = total_samples or None

    # --- what is seen -------------------------------------------------------------------------------------

    @property
    def num_workers(self) -> int:
        """Members, at least 1."""
        return len(self._workers) or 1

    def read(
        self,
        pace: str,
        version: int,
        *,
        num_at_start: int,
        now_s: float,
        leads: Mapping[int, int] | None = None,
        max_leads: Mapping[int, int] | None = None,
        parts: Mapping[int, float] | None = None,
        scales_gradients: bool = False,
        lost: int = 0,
    ) -> Signals:
        """The signals now; `leads`, own bounds of them and `parts` of a batch are by worker: 0, none and even where they say nothing."""
        leads, max_leads, parts = leads or {}, max_leads or {}, parts or {}
        even = 1.0 / self.num_workers
        workers = tuple(
            self._worker(number, now_s, lead=leads.get(number, 0), max_lead=max_leads.get(number), part=parts.get(number, even))
            for number in sorted(self._workers)
        )
        times = [worker.compute_s for worker in workers if worker.num_steps > SETTLING_STEPS]
        rate, stalenesses, slope = self._rates.read(), sorted(self._stalenesses), self._loss.slope
        share = min(1.0, self._samples / self._total) if self._total else None
        left = max(0, self._total - self._samples) / rate.samples_per_update if self._total and rate.samples_per_update else None
        change = self._change.mean
        return Signals(
            pace=pace,
            version=version,
            samples=self._samples,
            share=share,
            updates_left=left,
            num_workers=len(workers),
            num_at_start=num_at_start,
            workers=workers,
            warming_up=self._warmup.holds(self._samples),
            straggler_ratio=wasted(times),
            exchange_ratio=_ratio(workers),
            samples_per_s=rate.samples_per_s,
            gradients_per_s=rate.gradients_per_s,
            updates_per_s=rate.updates_per_s,
            staleness_mean=mean(stalenesses),
            staleness_p50=quantile(stalenesses, 0.5),
            staleness_p95=quantile(stalenesses, 0.95),
            staleness_max=quantile(stalenesses, 1.0),
            loss=self._loss.value,
            loss_first=self._loss.first,
            loss_slope=slope.value,
            loss_slope_error=slope.error,
            noise_scale=self._noise.value,
            noise_age=version - self._noise_version if self._noise.value is not None else 0,
            relative_change=self._old_change if change is None else change,
            busy_s=self._busy.mean or 0.0,
            num_shards=self._num_shards,
            lr_factor=self._lr_factor,
            scales_gradients=scales_gradients,
            lost=lost,
        )

    def _worker(self, number: int, now_s: float, *, lead: int, max_lead: int | None, part: float) -> WorkerSignals:
        steps = self._workers[number]
        return WorkerSignals(
            id=number,
            compute_s=mean(steps.compute_s),
            gate_s=mean(steps.gate_s),
            exchange_s=mean(steps.exchange_s),
            step_samples=mean(steps.samples),
            part=part,
            lead=lead,
            num_steps=steps.num_steps,
            steps_s=tuple(steps.compute_s),
            since_s=0.0 if steps.last_s is None else max(0.0, now_s - steps.last_s),
            max_lead=max_lead,
        )


def _ratio(workers: Sequence[WorkerSignals]) -> float:
    computed = sum(worker.compute_s for worker in workers)
    return sum(worker.exchange_s for worker in workers) / computed if computed > 0.0 else 0.0
