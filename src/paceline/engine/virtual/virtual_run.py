"""`paceline run --engine virtual`: a whole run in one process, in virtual time, with everything that a run leaves behind."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic

from paceline.config import DEFAULT, Resolved
from paceline.engine.local.console import Screen
from paceline.engine.local.coordinator_main import job_settings
from paceline.engine.local.final import write_final
from paceline.engine.local.results import report_line, result_lines
from paceline.engine.local.run_dir import LOGS, prepare_run_dir, settle_summary
from paceline.engine.local.serving import shard_of
from paceline.engine.local.signals import noted_signals
from paceline.engine.virtual.books import RecordBooks
from paceline.engine.virtual.cluster import crew_of
from paceline.engine.virtual.cluster_file import Loaded
from paceline.engine.virtual.compute import Rhythm, stream
from paceline.engine.virtual.fates import Fates
from paceline.engine.virtual.job import Job
from paceline.engine.virtual.luggage import MemoryFiles
from paceline.engine.virtual.network import Network
from paceline.engine.virtual.player import Player
from paceline.engine.virtual.probe import probe
from paceline.engine.virtual.theatre import Theatre
from paceline.engine.virtual.timeline import Timeline
from paceline.engine.virtual.timing import timing_job, uncollected
from paceline.errors import ExitCode, PacelineError, WriteError
from paceline.roles.effects import End, JobSettings
from paceline.trace.record import RunRecord
from paceline.transport import memory

OPEN_PATIENCE_S = 3600.0
"""How long workers wait for each other when nobody says so: virtual time costs nothing, and a slow cluster is no fault."""
_SIGNALS = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}


class VirtualRun:
    """One run from its directory to its exit code; `write_report`, if there is one, makes the report of it at the end."""

    def __init__(self, resolved: Resolved, loaded: Loaded, write_report: Callable[[Path], Path] | None) -> None:
        settings = resolved.settings
        self._resolved, self._loaded, self._write_report = resolved, loaded, write_report
        self._crew = crew_of(loaded.cluster, settings.workers)
        self._run_dir = Path(settings.out)
        self._screen = Screen(settings.workers)
        self._begun_s = monotonic()
        self._signals: list[int] = []
        self._summary: dict[str, object] = {"engine": "virtual"}

    def run(self, *, gradients: bool = True) -> int:
        """Run to the end; returns the exit code. Raises ConfigError or WriteError when the run cannot begin."""
        prepare_run_dir(self._run_dir, self._resolved)
        self._copy_cluster()
        record = RunRecord(self._run_dir, 0.0)
        self._screen.line(f"run directory: {self._run_dir}")
        try:
            with noted_signals(_SIGNALS, self._signals):
                end = self._play(record) if gradients else self._time(record)
        except PacelineError as error:
            end = self._interruption() or End(error.exit_code, str(error))
        finally:
            self._screen.clear()
        return self._close(record, end)

    def _settings(self) -> JobSettings:
        settings = job_settings(self._resolved)
        is_open = self._resolved.origins["patience"] == DEFAULT
        return settings._replace(patience_s=OPEN_PATIENCE_S) if is_open else settings

    def _copy_cluster(self) -> None:
        for name, data in self._loaded.copies.items():
            try:
                (self._run_dir / name).write_bytes(data)
            except OSError as error:
                raise WriteError(f"{self._run_dir / name} could not be written: {error.strerror}") from error

    # --- with gradients -----------------------------------------------------------------------------------

    def _play(self, record: RunRecord) -> End:
        """Let every worker's script play to its end."""
        settings, timeline, luggage = self._settings(), Timeline(), MemoryFiles()
        network = Network(timeline, self._loaded.cluster, self._crew, settings.num_servers)
        books = RecordBooks(record, self._screen, self._run_dir)
        job = Job(settings, timeline, network, build=shard_of, books=books, luggage=luggage)
        theatre = Theatre(self._resolved, self._run_dir / LOGS, lambda: bool(self._signals))
        seed, kills = self._resolved.settings.seed, self._loaded.cluster.kill
        Fates(job, self._crew, kills, seed, partial(self._player, job, theatre))
        try:
            with theatre.open(partial(self._show, job)):
                end = job.run(partial(self._look, books, job))
            if end.code == ExitCode.OK:
                self._write_final(job, luggage)
        except PacelineError as error:
            job.cut_short(error)
            raise
        finally:
            books.close()
            self._summary |= job.coordinator.summary()
            self._show_failure(theatre)
        return end

    def _player(self, job: Job, theatre: Theatre, worker: int, incarnation: int) -> Player:
        group = self._crew[worker]
        rhythm = Rhythm(group, worker, stream(self._resolved.settings.seed, worker, incarnation), self._loaded.times_s)
        return Player(job, worker, incarnation, rhythm, theatre=theatre, is_cut_short=group.cancel == "at once")

    def _show(self, job: Job, worker: int, line: str) -> None:
        """A line that a worker has printed, if it is the lowest that lives."""
        if worker == min((number for number, member in job.members.items() if member.alive), default=worker):
            self._screen.line(f"[{worker}] {line}")

    def _write_final(self, job: Job, luggage: MemoryFiles) -> None:
        if luggage.keeper.arena is not None and job.coordinator.job.model is not None:
            with memory.map_shared(luggage.keeper.arena) as arena, memoryview(arena) as view:
                write_final(self._run_dir, job.coordinator.job.model, view)

    # --- without ------------------------------------------------------------------------------------------

    def _time(self, record: RunRecord) -> End:
        """See what the script does, then let counters do it."""
        theatre = Theatre(self._resolved, self._run_dir / LOGS, lambda: bool(self._signals))
        try:
            work = probe(self._resolved, theatre, lambda worker, line: self._screen.line(f"[{worker}] {line}"))
        finally:
            self._show_failure(theatre)
        if isinstance(work, End):
            return work
        books, settings = RecordBooks(record, self._screen, self._run_dir), self._resolved.settings
        seed, slow, recorded = settings.seed, settings.slow, settings.compute
        job = timing_job(self._settings(), self._loaded, work, seed=seed, books=books, slow=slow, recorded=recorded)
        try:
            with uncollected():
                return job.run(partial(self._look, books, job))
        except PacelineError as error:
            job.cut_short(error)
            raise
        finally:
            books.close()
            self._summary |= job.coordinator.summary()

    # --- watching and ending ------------------------------------------------------------------------------

    def _look(self, books: RecordBooks, job: Job) -> None:
        interruption = self._interruption()
        if interruption is not None:
            job.interrupt(interruption.code, interruption.sentence)
        books.look(job)

    def _interruption(self) -> End | None:
        if not self._signals:
            return None
        number = signal.Signals(self._signals[0])
        word = "interrupted" if number is signal.SIGINT else "terminated"
        return End(_SIGNALS[number], f"{word} by {number.name}")

    def _show_failure(self, theatre: Theatre) -> None:
        """The traceback of the script that failed; its sentence is the run's."""
        for _, failed in theatre.failures:
            if failed.text:
                self._screen.error(failed.text)

    def _close(self, record: RunRecord, end: End) -> int:
        """Tell how it went; returns the exit code."""
        if end.sentence:
            self._screen.error(f"paceline: {end.sentence}")
        summary = {
            **self._summary,
            "virtual_s": self._summary.get("wall_s", 0.0),
            "wall_s": monotonic() - self._begun_s,
            "exit": int(end.code),
        }
        code = end.code
        try:
            record.close(summary)
        except WriteError as error:
            code = error.exit_code
            self._screen.error(f"paceline: {error}")
            summary = settle_summary(self._run_dir, summary, code)
        for line in result_lines(summary):
            self._screen.line(line)
        if self._write_report is not None:
            self._screen.line(report_line(self._run_dir, self._write_report))
        return code
