"""`paceline run --engine virtual`: a whole run in one process, in virtual time, with everything that a run leaves behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic

import torch

from paceline.config import DEFAULT, Resolved
from paceline.engine.link import Link, install_each
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
from paceline.engine.virtual.guards import guarded
from paceline.engine.virtual.job import Job
from paceline.engine.virtual.luggage import MemoryFiles
from paceline.engine.virtual.network import Network
from paceline.engine.virtual.player import Player, Theatre
from paceline.engine.virtual.prints import Prints
from paceline.engine.virtual.script import Script
from paceline.engine.virtual.stage import Stage
from paceline.engine.virtual.timeline import Timeline
from paceline.errors import DeadlineError, ExitCode, WriteError
from paceline.roles.effects import End, JobSettings
from paceline.trace.record import RunRecord
from paceline.transport import memory

OPEN_PATIENCE_S = 3600.0
"""How long workers wait for each other when nobody says so: virtual time costs nothing, and a slow cluster is no fault."""
TURN_S = 600.0
"""How long, in real time, a script may run between two calls into Paceline."""
_SIGNALS = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}


class VirtualRun:
    """One run from its directory to its exit code; `write_report` makes the report of a run directory at the end."""

    def __init__(self, resolved: Resolved, loaded: Loaded, write_report: Callable[[Path], Path]) -> None:
        settings = resolved.settings
        self._resolved, self._loaded, self._write_report = resolved, loaded, write_report
        self._crew = crew_of(loaded.cluster, settings.workers)
        self._run_dir = Path(settings.out)
        self._screen = Screen(settings.workers)
        self._begun_s = monotonic()
        self._signals: list[int] = []

    def run(self) -> int:
        """Run to the end; returns the exit code. Raises ConfigError or WriteError when the run cannot begin."""
        prepare_run_dir(self._run_dir, self._resolved)
        self._copy_cluster()
        record = RunRecord(self._run_dir, 0.0)
        self._screen.line(f"run directory: {self._run_dir}")
        timeline, settings, luggage = Timeline(), self._settings(), MemoryFiles()
        books = RecordBooks(record, self._screen)
        network = Network(timeline, self._loaded.cluster, self._crew, settings.num_servers)
        job = Job(settings, timeline, network, build=shard_of, books=books, luggage=luggage)
        try:
            with noted_signals(_SIGNALS, self._signals), _one_thread():
                end = self._play(job, partial(self._look, books, job))
            if end.code == ExitCode.OK:
                self._write_final(job, luggage)
        except (DeadlineError, WriteError) as error:
            end = End(error.exit_code, str(error))
        finally:
            self._screen.clear()
        return self._close(job, record, end)

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

    # --- the play -----------------------------------------------------------------------------------------

    def _play(self, job: Job, look: Callable[[], None]) -> End:
        """Let every worker's script play to its end."""
        settings = self._resolved.settings
        script = Script(settings.script, settings.args)
        theatre = Theatre(Stage(TURN_S), script, self._resolved, {}, [])
        Fates(job, self._crew, self._loaded.cluster.kill, settings.seed, partial(self._player, job, theatre))
        show = partial(self._show, job)
        with (
            Prints(self._run_dir / LOGS, lambda: _number(theatre.playing), show) as prints,
            guarded(lambda: theatre.playing),
            script.in_place(),
        ):
            install_each(lambda: _link(theatre.playing))
            try:
                end = job.run(look)
                for worker, text in theatre.failures:
                    prints.note(worker, f"{text}\n")
                for player in list(theatre.cast.values()):
                    player.stop()
            finally:
                theatre.stage.close()
        return end

    def _player(self, job: Job, theatre: Theatre, worker: int, incarnation: int) -> Player:
        group = self._crew[worker]
        rhythm = Rhythm(group, worker, stream(self._resolved.settings.seed, worker, incarnation), self._loaded.times_s)
        return Player(job, worker, incarnation, rhythm, theatre=theatre, is_cut_short=group.cancel == "at once")

    def _show(self, job: Job, worker: int, line: str) -> None:
        """A line that a worker has printed, if it is the lowest that lives."""
        if worker == min((number for number, member in job.members.items() if member.alive), default=worker):
            self._screen.line(f"[{worker}] {line}")

    def _look(self, books: RecordBooks, job: Job) -> None:
        if self._signals:
            code = _SIGNALS[signal.Signals(self._signals[0])]
            word = "interrupted" if code is ExitCode.INTERRUPTED else "terminated"
            job.interrupt(code, f"{word} by {signal.Signals(self._signals[0]).name}")
        books.look(job)

    # --- the end ------------------------------------------------------------------------------------------

    def _write_final(self, job: Job, luggage: MemoryFiles) -> None:
        if luggage.keeper.arena is not None and job.coordinator.job.model is not None:
            with memory.map_shared(luggage.keeper.arena) as arena, memoryview(arena) as view:
                write_final(self._run_dir, job.coordinator.job.model, view)

    def _close(self, job: Job, record: RunRecord, end: End) -> int:
        """Tell how it went; returns the exit code."""
        if end.sentence:
            self._screen.error(f"paceline: {end.sentence}")
        known = job.coordinator.summary()
        summary = {"engine": "virtual", **known, "virtual_s": known["wall_s"], "wall_s": monotonic() - self._begun_s, "exit": int(end.code)}
        code = end.code
        try:
            record.close(summary)
        except WriteError as error:
            code = error.exit_code
            self._screen.error(f"paceline: {error}")
            summary = settle_summary(self._run_dir, summary, code)
        for line in result_lines(summary):
            self._screen.line(line)
        self._screen.line(report_line(self._run_dir, self._write_report))
        return code


def _number(player: Player | None) -> int | None:
    return None if player is None else player.id


def _link(player: Player | None) -> Link | None:
    return None if player is None else player.link


@contextmanager
def _one_thread() -> Generator[None]:
    """Sums depend on how many threads share them, so it is always one."""
    kept = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(kept)


def run(resolved: Resolved, loaded: Loaded, write_report: Callable[[Path], Path]) -> int:
    """Run `resolved` on the cluster `loaded` in virtual time; returns the exit code."""
    return VirtualRun(resolved, loaded, write_report).run()
