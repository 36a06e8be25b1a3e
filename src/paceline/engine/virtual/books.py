"""The record of a virtual run: what the coordinator says goes into the run directory, with virtual times and no process numbers."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

from paceline.engine.local.console import Screen
from paceline.engine.virtual.advice import Advice
from paceline.engine.virtual.job import Job
from paceline.roles.effects import Consult, Decide, Effect, Metrics, Warn
from paceline.trace.record import RunRecord

LOOK_S = 0.2
"""How often the disk and the console are brought up to date, in real time: neither changes what is written."""


class RecordBooks:
    """`seams.Books` that write into `record` and speak to the `screen`; a user's own policy has its log in `run_dir`."""

    def __init__(self, record: RunRecord, screen: Screen, run_dir: Path) -> None:
        self._record, self._screen, self._run_dir = record, screen, run_dir
        self._advice: Advice | None = None
        self._look_s = 0.0

    def note(self, event: dict[str, object], now_s: float) -> None:
        """An event; a virtual process has no number."""
        self._record.note({name: value for name, value in event.items() if name != "pid"} if "pid" in event else event, now_s)

    def take(self, effect: Effect, job: Job) -> None:
        """Metrics, decisions and warnings; whatever else is to be answered."""
        now_s = job.timeline.now_s
        match effect:
            case Metrics(worker=worker, metrics=metrics, epoch=epoch, samples=samples, weight=weight):
                self._record.metrics(worker, metrics, epoch=epoch, samples=samples, weight=weight, now_s=now_s)
            case Decide(record=record):
                self._record.decide(record, now_s)
            case Warn(sentence=sentence):
                self._screen.error(f"paceline: {sentence}")
            case Consult():
                job.timeline.after(0.0, self._consult, effect, job)
            case _:
                raise AssertionError(f"nobody carries out {type(effect).__name__}")

    def _consult(self, consult: Consult, job: Job) -> None:
        settings = job.coordinator.job.settings
        assert settings.hybrid is not None
        self._advice = self._advice or Advice(settings.hybrid, self._run_dir, settings.num_workers)
        answer = self._advice.ask(consult)
        while self._advice.remarks:
            self._screen.error(f"paceline: {self._advice.remarks.pop(0)}")
        if job.end is None:
            job.carry_out(job.coordinator.advised(answer.number, answer.pace, answer.why, answer.error, job.timeline.now_s))

    def close(self) -> None:
        """Leave no process of the policy behind."""
        if self._advice is not None:
            self._advice.close()

    def look(self, job: Job) -> None:
        """Called often: now and then write what is pending and show the state of the run. Raises WriteError."""
        real_s = monotonic()
        if real_s >= self._look_s:
            self._look_s = real_s + LOOK_S
            self._record.flush()
            self._screen.progress(job.coordinator.status(), real_s)
