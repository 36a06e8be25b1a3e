"""The coordinator's part that lets nobody wait for ever: who is waited for, how long, and the sentence that says so."""

from __future__ import annotations

from paceline.logic.membership import COMPUTING, RESTING, Worker
from paceline.roles.epochs import Epochs, Stage
from paceline.roles.folds import Folds
from paceline.roles.job import Job
from paceline.roles.leases import EVALUATION_PATIENCES
from paceline.roles.meetings import Meetings
from paceline.roles.steps import Steps

STUCK_STEPS = 20
"""A step that takes so many times the mean step, and more than the patience, is stuck when somebody waits for it."""
LEAST_WAIT_S = 30.0
"""`--patience` is for what scripts do. Servers and coordinator run our code only: whoever waits for one of them does so for at
least so long, since a loaded machine may keep any process from running for many seconds."""


class Patience:
    """Looks at the waits now and then; `due_s` is when it wants to look next."""

    def __init__(self, job: Job, epochs: Epochs, folds: Folds, steps: Steps, meetings: Meetings) -> None:
        self.job, self.epochs, self.folds, self.steps, self.meetings = job, epochs, folds, steps, meetings
        self.routes = steps.routes
        self._every_s = max(0.05, min(2.0, job.settings.patience_s / 4))
        self.due_s = job.now_s + self._every_s

    def expire(self) -> None:
        """End the job when a wait has passed its deadline."""
        job = self.job
        if job.now_s < self.due_s:
            return
        self.due_s = job.now_s + self._every_s
        patience_s = job.settings.patience_s
        limit_s = max(patience_s, STUCK_STEPS * self.steps.mean_s)
        server_s = max(patience_s, LEAST_WAIT_S)
        if self._report_is_late(server_s, EVALUATION_PATIENCES * limit_s):
            return
        for key, meeting in self.meetings.open.items():
            if job.now_s - meeting.since_s > EVALUATION_PATIENCES * limit_s:
                absent = ", ".join(str(worker.id) for worker in self.meetings.missing_at(meeting))
                waited = f"waited {EVALUATION_PATIENCES * limit_s:g} s for worker(s) {absent} to meet the others at {key}"
                job.end(5, f"{waited}; if they may take that long, raise --patience")
                return
        if self.somebody_waits:
            self._check_workers(limit_s)
            self._check_silence(max(EVALUATION_PATIENCES * limit_s, LEAST_WAIT_S))

    def _report_is_late(self, server_s: float, resting_s: float) -> bool:
        """End the job when the reports of an update, or those who move the shards, are late; members at rest may take longer."""
        job = self.job
        for version, norm in self.folds.norms.items():
            limit_s = server_s if job.vote is None else resting_s
            if job.now_s - norm.since_s > limit_s:
                missing = ", ".join(sorted(map(str, norm.owed_by)))
                job.end(5, f"waited {limit_s:g} s for {missing} to report on update {version}")
                return True
        # a group that cannot meet says so itself before that
        late = self.routes.late(server_s + LEAST_WAIT_S, resting_s)
        if late:
            names = ", ".join(f"worker {number}" for number in late)
            job.end(5, f"waited {job.now_s - self.routes.since_s:.0f} s for {names}, while {self.routes.stage.value}")
        return bool(late)

    @property
    def somebody_waits(self) -> bool:
        """Whether a worker waits for what another one does."""
        return bool(self.steps.waiting or self.epochs.leases.line or self.epochs.not_ended() or self.epochs.stage is Stage.DRAWING)

    def _check_workers(self, limit_s: float) -> None:
        job = self.job
        not_ended = self.epochs.not_ended()
        for worker in job.members.workers.values():
            silent_s = job.now_s - worker.since_s
            if worker.phase is COMPUTING and silent_s > limit_s:
                computes = f"computes step {worker.next_step} since {silent_s:.0f} s"
                job.end(5, f"waited {limit_s:g} s for worker {worker.id}, which {computes}; if its steps are that long, raise --patience")
                return
            owed = worker.startable or worker.id in not_ended or (self.epochs.stage is Stage.DRAWING and worker.id == self.epochs.drawer)
            if worker.phase is RESTING and owed and self._rested_s(worker) > EVALUATION_PATIENCES * limit_s:
                waited = f"waited {EVALUATION_PATIENCES * limit_s:g} s for worker {worker.id}"
                job.end(5, f"{waited}, which is between leases (an evaluation?); raise --patience")
                return

    def _check_silence(self, limit_s: float) -> None:
        """The last resort: workers wait, and nothing at all has come for long."""
        job = self.job
        if job.now_s - job.heard_s > limit_s:
            waiting = ", ".join(str(number) for number in sorted({*self.steps.waiting, *self.epochs.leases.line}))
            job.end(5, f"nothing has moved for {limit_s:g} s; worker(s) {waiting} wait and nobody is left to wait for")

    def _rested_s(self, worker: Worker) -> float:
        last_s = self.job.accounts.last_s
        return self.job.now_s - max(worker.since_s, self.job.started_s if last_s is None else last_s)

    def late(self) -> tuple[int, ...]:
        """The workers that others wait for, for whoever watches the run."""
        if not (self.steps.waiting or self.epochs.leases.line):
            return ()
        return tuple(worker.id for worker in self.job.members.workers.values() if worker.phase is COMPUTING)
