"""What a script costs on this machine: seconds a sample, and the bytes of all that it keeps.

One virtual worker plays it with epochs of a few batches; the steps are real, and so are their times.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from types import ModuleType

import msgspec
import torch
from torch.autograd.graph import saved_tensors_hooks

from paceline.config import Resolved
from paceline.engine.local.coordinator_main import job_settings
from paceline.engine.local.serving import shard_of
from paceline.engine.virtual.cluster import EVEN, crew_of
from paceline.engine.virtual.compute import Rhythm, stream
from paceline.engine.virtual.job import Job
from paceline.engine.virtual.luggage import MemoryFiles
from paceline.engine.virtual.network import Network
from paceline.engine.virtual.player import Player
from paceline.engine.virtual.probe import probe
from paceline.engine.virtual.script import Script
from paceline.engine.virtual.theatre import Theatre
from paceline.engine.virtual.timeline import Timeline
from paceline.engine.virtual.trainee import Workload
from paceline.errors import ConfigError, ExitCode, PacelineError
from paceline.messages import Address, Drawn, Message, Serve, TensorSpec
from paceline.pace import parse_pace
from paceline.ports import Delivery
from paceline.roles.effects import Effect, End, Metrics
from paceline.tensors.shard import Shard

NUM_BATCHES = 6
"""Of an epoch: the step times of each, so that a script of a few epochs has a dozen."""
ENOUGH_STEPS = 12
MOST_S = 60.0


class Profile(msgspec.Struct, frozen=True):
    """A script in numbers. `activation_bytes` is what one step of `batch` samples keeps for its backward pass.

    `sample_s` is the median of the steps seen, between their quartiles. `first` are the metrics as they were when hardly
    anything was learned. `folds_sums` is true for optimizers that feel the length of a gradient (SGD).
    """

    num_epochs: int
    epoch_samples: int
    batch: int
    sample_s: float
    sample_low_s: float
    sample_high_s: float
    parameter_bytes: int
    buffer_bytes: int
    optimizer: str
    optimizer_bytes: int
    activation_bytes: int
    first: dict[str, float]

    @property
    def samples(self) -> int:
        """Of the whole run."""
        return self.num_epochs * self.epoch_samples


class _Observed(Script):
    """The script, with its saved activations counted: every storage once, parameters left out."""

    def __init__(self, path: str, arguments: tuple[str, ...]) -> None:
        super().__init__(path, arguments)
        self._sizes: dict[int, int] = {}
        self.most_bytes = 0

    def run(self, module: ModuleType) -> None:
        """Run the script in `module`."""
        with saved_tensors_hooks(self._save, _same):
            super().run(module)

    def end_step(self) -> None:
        """What was saved since the last step belongs to this one."""
        self.most_bytes = max(self.most_bytes, sum(self._sizes.values()))
        self._sizes.clear()

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        owner = tensor if tensor._base is None else tensor._base  # noqa: SLF001 - of a view, for which torch has no other word
        if not (owner.is_leaf and owner.requires_grad):
            storage = tensor.untyped_storage()
            self._sizes[storage.data_ptr()] = storage.nbytes()
        return tensor


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Timed(Player):
    """A worker whose real time between two calls into Paceline is taken; epochs are cut to their beginning."""

    def __init__(self, job: Job, rhythm: Rhythm, *, theatre: Theatre, observed: _Observed) -> None:
        super().__init__(job, 0, 0, rhythm, theatre=theatre, is_cut_short=False)
        self.sample_times_s: list[float] = []
        self._observed = observed
        self._begun_s, self._spent_s = perf_counter(), 0.0

    def send(self, to: Address, message: Message, attachments: object) -> None:
        """Cut a batch list to its beginning."""
        if isinstance(message, Drawn) and not message.cut:
            sizes = message.sizes[:NUM_BATCHES]
            message = msgspec.structs.replace(message, sizes=sizes, owners=(), updates=len(sizes))
        super().send(to, message, attachments)  # type: ignore[arg-type]

    def wait_for_delivery(self) -> Delivery:
        """The clock stands still meanwhile."""
        self._spent_s += perf_counter() - self._begun_s
        delivery = super().wait_for_delivery()
        self._begun_s = perf_counter()
        return delivery

    def spend(self, samples: int) -> None:
        """A step has been computed."""
        self._spent_s += perf_counter() - self._begun_s
        if samples:
            self.sample_times_s.append(self._spent_s / samples)
        self._observed.end_step()
        self._spent_s = 0.0
        super().spend(samples)
        self._begun_s = perf_counter()


class _FirstBooks:
    """Books that keep the first value of each metric."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}

    def note(self, event: dict[str, object], now_s: float) -> None:
        """Events tell nothing of the costs."""

    def take(self, effect: Effect, job: Job) -> None:  # noqa: ARG002 - as books are kept
        """Keep what is logged."""
        if isinstance(effect, Metrics):
            self.first = effect.metrics | self.first


def profile_script(resolved: Resolved, logs: Path, *, metric: str | None) -> tuple[Profile, Workload]:
    """Play the script for a few steps, and on until `metric` is logged. Raises ConfigError when it never is, for a minute."""
    work = probe(resolved, Theatre(resolved, logs, _never), _silent)
    if isinstance(work, End):
        raise Unplayable(work, logs)
    begun_s = perf_counter()
    observed = _Observed(resolved.settings.script, resolved.settings.args)
    books, shards = _FirstBooks(), list[Shard]()

    def build(serve: Serve, attachments: tuple[object, ...]) -> Shard:
        shards.append(shard_of(serve, attachments))
        return shards[-1]

    def look() -> None:
        is_seen = metric is None or metric in books.first
        is_enough = is_seen and len(worker.sample_times_s) > ENOUGH_STEPS
        if is_enough or perf_counter() - begun_s > MOST_S:
            job.end = End(ExitCode.OK, "")

    job, theatre, rhythm = _lone_job(resolved, logs, books, build)
    theatre.script = observed
    with theatre.open(_silent):
        worker = _Timed(job, rhythm, theatre=theatre, observed=observed)
        for other in range(1, resolved.settings.workers):
            job.absent(other)
        job.join(worker)
        end = job.run(look)
        state_bytes = sum(len(shard.save(optimizer=True)) - len(shard.save(optimizer=False)) for shard in shards)
    if end.code:
        raise Unplayable(end, logs)
    if metric is not None and metric not in books.first:
        raise ConfigError(
            f"--target: {resolved.settings.script} never logged {metric!r} in the steps tried, it logs {_listed(books.first)}"
        )
    return _profile(work, worker, observed, state_bytes, books.first), work


class Unplayable(PacelineError):
    """The script did not get through the few steps of a profile, or through a pilot; what it printed is in `logs`."""

    def __init__(self, end: End, logs: Path) -> None:
        super().__init__(f"{end.sentence} (what it printed is in {logs})")
        self.exit_code = ExitCode(end.code)


def _lone_job(
    resolved: Resolved, logs: Path, books: _FirstBooks, build: Callable[[Serve, tuple[object, ...]], Shard]
) -> tuple[Job, Theatre, Rhythm]:
    """A job that waits for one worker, on even machines."""
    settings = job_settings(resolved)._replace(pace=parse_pace("sync"), pace_is_open=False, hybrid=None)
    timeline, crew = Timeline(), crew_of(EVEN, settings.num_workers)
    network = Network(timeline, EVEN, crew, settings.num_servers)
    job = Job(settings, timeline, network, build=build, books=books, luggage=MemoryFiles())
    return job, Theatre(resolved, logs, _never), Rhythm(crew[0], 0, stream(0), {})


def _profile(work: Workload, worker: _Timed, observed: _Observed, state_bytes: int, first: dict[str, float]) -> Profile:
    times_s = worker.sample_times_s[1:] or worker.sample_times_s  # the first step allocates
    low_s, median_s, high_s = quantiles(times_s, n=4) if len(times_s) > 1 else times_s * 3
    return Profile(
        num_epochs=work.num_epochs,
        epoch_samples=sum(work.sizes),
        batch=work.cut or max(work.sizes),
        sample_s=median_s,
        sample_low_s=low_s,
        sample_high_s=high_s,
        parameter_bytes=_bytes_of(work.model.parameters),
        buffer_bytes=_bytes_of(work.model.buffers),
        optimizer=work.model.optimizer.partition(":")[2],
        optimizer_bytes=state_bytes,
        activation_bytes=observed.most_bytes,
        first=first,
    )


def _bytes_of(specs: tuple[TensorSpec, ...]) -> int:
    return sum(prod(spec.shape) * getattr(torch, spec.dtype).itemsize for spec in specs)


def _listed(names: dict[str, float]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _never() -> bool:
    return False


def _silent(worker: int, line: str) -> None:
    """What a script prints stands in its log."""
