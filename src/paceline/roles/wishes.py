"""The coordinator's part that does what a script asks for between its steps: numbers logged, states saved and loaded, an early end."""

from __future__ import annotations

from paceline.logic.membership import Worker
from paceline.messages import Load, Log, Restate, Snapshot, SnapshotRequest, StopRun
from paceline.roles.effects import Metrics
from paceline.roles.epochs import Epochs
from paceline.roles.job import Job
from paceline.roles.moves import Moves
from paceline.roles.steps import Steps


class Wishes:
    """While a group holds the shards, a snapshot for a worker outside of it waits until the servers hold them again."""

    def __init__(self, job: Job, epochs: Epochs, steps: Steps, moves: Moves) -> None:
        self.job, self.epochs, self.steps, self.moves = job, epochs, steps, moves
        self._num_snapshots = 0
        self._snapshots: list[tuple[Worker, SnapshotRequest]] = []
        self._loads: list[tuple[Worker, Load]] = []

    def log(self, worker: Worker, message: Log) -> None:
        """The script has logged something."""
        self.job.accounts.logged(worker.id, message.metrics, message.weight)
        self.moves.logged(message)
        self.job.outbox.append(Metrics(worker.id, message.metrics, message.epoch, self.job.accounts.samples, message.weight))

    def snapshot(self, worker: Worker, message: SnapshotRequest) -> None:
        """A worker asks for the state of all shards at one version."""
        self._snapshots.append((worker, message))
        self.settle()

    def passes_over(self, worker_id: int) -> bool:
        """Whether a state that a worker loads now is not taken."""
        worker = self.job.members.workers.get(worker_id)
        return worker is None or worker.epoch < worker.first_epoch

    def load(self, worker: Worker, message: Load) -> None:
        """A worker has a state that is to be the run's."""
        if self.passes_over(worker.id):
            self.job.warn(f"worker {worker.id} joined late and loads a state before its first epoch: passed over, it takes the run's")
            return
        self._loads.append((worker, message))
        self.settle()

    def stop(self, worker: Worker, message: StopRun) -> None:
        """The script asks for an early end of the run for all."""
        if not self.job.stopping:
            self.job.stopping = f"worker {worker.id}: {message.why}"
            self.epochs.leases.close()

    @property
    def is_loading(self) -> bool:
        """Whether a state is to be loaded once the shards are at rest."""
        return bool(self._loads)

    def settle(self) -> None:
        """After any event: do what had to wait."""
        while self._snapshots and not self.job.group:
            worker, message = self._snapshots.pop(0)
            self._num_snapshots += 1
            self.job.order(Snapshot(worker.id, worker.incarnation, self._num_snapshots, message.optimizer))
        while self._loads and self.steps.flush():
            self._restate(*self._loads.pop(0))

    def _restate(self, worker: Worker, message: Load) -> None:
        self.job.version += 1
        self.steps.forget_kept()
        self.job.note("load", version=self.job.version, worker=worker.id)
        self.job.order(Restate(self.job.version, message.has_parameters, message.has_optimizer_state))
