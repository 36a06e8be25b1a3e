"""`paceline run`: starts the processes of a run, watches them, and says at the end how it went, with one exit code.

It takes no part in the training: it hears of progress and failures, tells the coordinator of workers that were killed,
and sees to it that nothing is left running.
"""

from __future__ import annotations

import selectors
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic

from paceline.config import Resolved
from paceline.engine.local.blame import DIED, LATE, LEFT_ALONE, REPORTED, SIGNALLED, UNEXPLAINED, Failure, cause_of, failure_of
from paceline.engine.local.console import Screen
from paceline.engine.local.departures import Departures
from paceline.engine.local.family import Child, Family, signal_name
from paceline.engine.local.results import report_line, result_lines
from paceline.engine.local.run_dir import prepare_run_dir, settle_summary
from paceline.engine.local.signals import noted_signals
from paceline.errors import ExitCode, PeerLostError, WriteError
from paceline.messages import COORDINATOR, SUPERVISOR, Bye, Failed, Gone, Halt, Message, Progress, Remark
from paceline.ports import Delivery
from paceline.roles.patience import LEAST_WAIT_S
from paceline.transport.shm import SocketPort

TICK_S = 0.2
GRACE_S = 2.0
"""How long a process may take to end by itself once the run is over for it; then TERM, as long again, then KILL."""
NUM_STAGES = 3
"""TERM, KILL, the coordinator's KILL; all are to come while nobody was signalled."""
FAREWELL_S = 10.0
"""How long workers may take for what their scripts do at exit, after a run that went well."""
_OUR_ENDS = (-signal.SIGTERM, -signal.SIGKILL)
_SIGNALS = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED, signal.SIGHUP: ExitCode.TERMINATED}


def _died(status: int) -> str:
    return f"was killed by {signal_name(status)}" if status < 0 else f"ended with status {status}"


class Supervisor:
    """One run from its directory to its exit code; `write_report` makes the report of a run directory at the end."""

    def __init__(self, resolved: Resolved, write_report: Callable[[Path], Path]) -> None:
        self._resolved = resolved
        self._write_report = write_report
        self._run_dir = Path(resolved.settings.out)
        self._patience_s = max(resolved.settings.patience_s, LEAST_WAIT_S)
        self._port = SocketPort(SUPERVISOR)
        self._family = Family(resolved, self._port)
        self._screen = Screen(resolved.settings.workers)
        self._selector = selectors.DefaultSelector()
        self._departures = Departures(self._screen.error)
        self._failures: list[Failure] = []
        self._signals: list[int] = []
        self._progress: Progress | None = None
        self._heard_s = 0.0
        self._workers_ended_s: float | None = None
        self._stages: list[tuple[float, Callable[[], None]]] = []

    def run(self) -> int:
        """Run to the end; returns the exit code. Raises ConfigError or WriteError when the run cannot begin."""
        with noted_signals(_SIGNALS, self._signals) as woken:
            prepare_run_dir(self._run_dir, self._resolved)
            self._selector.register(woken.fileno(), selectors.EVENT_READ, woken.drain)
            try:
                self._start()
                while self._family.running():
                    self._turn()
                self._read_rest()
            except WriteError as error:
                self._fail(Failure(REPORTED, error.exit_code, str(error)))
            finally:
                self._family.kill()
                self._port.close(flush_s=0.0)
                self._selector.close()
                self._screen.clear()
            code = self._close()
        self._family.close()
        return code

    # --- the loop -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._screen.line(f"run directory: {self._run_dir}")
        self._family.start()
        self._heard_s = monotonic()
        self._selector.register(self._port.fileno(), selectors.EVENT_READ, self._hear)
        for child in self._family.children.values():
            self._watch(child)

    def _watch(self, child: Child) -> None:
        self._selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._bury(child))
        self._selector.register(child.output.fd, selectors.EVENT_READ, lambda: self._read(child))

    def _turn(self) -> None:
        # the coordinator's end first: what follows from it is no failure of its own
        first = self._family.children.get(COORDINATOR)
        ready = sorted((key for key, _ in self._selector.select(TICK_S)), key=lambda key: first is None or key.fd != first.pidfd)
        for call in [*(key.data for key in ready), self._hear]:
            try:
                call()
            except WriteError as error:
                self._fail(Failure(REPORTED, error.exit_code, str(error)))
        now_s = monotonic()
        while self._signals:
            self._obey(self._signals.pop(0))
        while self._stages and now_s >= self._stages[0][0]:
            self._stages.pop(0)[1]()
        self._departures.tell(now_s)
        self._check_waits(now_s)

    def _read(self, child: Child) -> None:
        lines = child.output.read()
        if child.output.ended:
            self._selector.unregister(child.output.fd)
        if lines and self._is_shown(child):
            prefix = f"[{child.who.id}] " if child.who.role == "worker" else f"{child.who}: "
            for line in lines:
                self._screen.line(prefix + line)

    def _is_shown(self, child: Child) -> bool:
        """Of the workers the lowest that runs; servers and coordinator always, as they print only what has gone wrong."""
        if child.who.role != "worker":
            return True
        lowest = next((worker for worker in self._family.workers() if worker.runs or not worker.output.ended), None)
        return child is lowest

    def _read_rest(self) -> None:
        """What the pipes still hold; nobody is left who could write more."""
        for child in self._family.children.values():
            child.output.drain(partial(self._read, child))

    # --- what is heard ------------------------------------------------------------------------------------

    def _hear(self) -> None:
        while (delivery := self._port.receive(0.0)) is not None:
            if delivery.sender == COORDINATOR:
                self._heard_s = monotonic()
            self._take(delivery)

    def _take(self, delivery: Delivery) -> None:
        match delivery.message:
            case Progress() as progress:
                self._progress = progress
                self._screen.progress(progress, monotonic())
            case Remark(sentence=sentence):
                self._screen.error(f"paceline: {sentence}")
            case Failed() as failed:
                self._fail(failure_of(failed))
                child = self._family.children[delivery.sender]
                child.output.note(f"{failed.text}{failed.sentence}\n")
            case Bye():
                self._family.children[delivery.sender].said_bye = True
            case _:
                pass

    def _fail(self, failure: Failure) -> None:
        """Something has gone wrong: the run ends, and the cause is told when everything is known."""
        self._failures.append(failure)
        if len(self._failures) == 1:
            self._departures.end()
            self._tell_coordinator(Halt(failure.code, failure.sentence))
            self._end_in_stages(GRACE_S)

    def _coordinator_runs(self) -> bool:
        coordinator = self._family.children.get(COORDINATOR)
        return coordinator is not None and coordinator.runs

    def _tell_coordinator(self, message: Message) -> None:
        with suppress(PeerLostError):
            self._port.send(COORDINATOR, message)

    def _end_in_stages(self, grace_s: float) -> None:
        """TERM after `grace_s`, KILL some time later; the coordinator, which closes the run's record, comes last."""
        now_s, family, spare = monotonic(), self._family, (COORDINATOR,)
        self._stages = [
            (now_s + grace_s, lambda: family.signal(signal.SIGTERM, spare=spare)),
            (now_s + grace_s + GRACE_S, lambda: family.signal(signal.SIGKILL, spare=spare)),
            (now_s + grace_s + 2 * GRACE_S, lambda: family.signal(signal.SIGKILL)),
        ]

    def _obey(self, number: int) -> None:
        """The first signal ends the run in order, the second at once."""
        code = _SIGNALS[signal.Signals(number)]
        if any(failure.rank == SIGNALLED for failure in self._failures):
            self._family.signal(signal.SIGKILL)
            return
        word = "interrupted" if code is ExitCode.INTERRUPTED else "terminated"
        already_ending = bool(self._failures)
        self._fail(Failure(SIGNALLED, code, f"{word} by {signal.Signals(number).name}"))
        if already_ending or not self._coordinator_runs():
            self._end_in_stages(0.0)

    # --- who has ended ------------------------------------------------------------------------------------

    def _bury(self, child: Child) -> None:
        """A process has ended; what it had to say is heard first."""
        self._hear()
        self._selector.unregister(child.pidfd)
        status = child.reap()
        ending = bool(self._failures) and not (status < 0 and self._may_be_the_cause())
        match child.who.role:
            case "coordinator":
                self._coordinator_ended(child, status, ending)
            case "server":
                if status and not ending:
                    self._lost(f"{child} {_died(status)}: its shard of the parameters is gone with it, so the run ends")
            case _:
                self._worker_ended(child, status, ending)

    def _may_be_the_cause(self) -> bool:
        """Whether a killed process explains all that is known: others were heard of before it, and we have killed nobody."""
        return all(failure.rank == LEFT_ALONE for failure in self._failures) and len(self._stages) == NUM_STAGES

    def _lost(self, sentence: str) -> None:
        """The run cannot do without the process that has died."""
        self._fail(Failure(DIED, ExitCode.PEER_LOST, sentence))

    def _coordinator_ended(self, child: Child, status: int, ending: bool) -> None:
        if ending:
            return
        if status:
            self._lost(f"{child} {_died(status)}: it orders every update, so the run ends")
        else:
            self._end_in_stages(FAREWELL_S)

    def _worker_ended(self, child: Child, status: int, ending: bool) -> None:
        workers = self._family.workers()
        if not any(worker.runs for worker in workers):
            self._workers_ended_s = monotonic()
        if ending or (status == 0 and child.said_bye):
            return
        if status > 0:
            self._fail(Failure(UNEXPLAINED, ExitCode.SCRIPT_FAILED, f"{child} ended with status {status}"))
        elif child.said_bye:
            # what it has trained is the run's: no failure
            limit = f", as its threads or exit functions took more than {FAREWELL_S:g} s" if status in _OUR_ENDS else ""
            self._screen.error(f"paceline: {child} {_died(status)} after its script had ended{limit}")
        elif any(worker.runs or worker.said_bye for worker in workers):
            self._left(child, status)
        else:
            self._lost(f"{child}, the last one, {_died(status)}, so the run ends")

    def _left(self, child: Child, status: int) -> None:
        """A worker that was killed, or has ended itself without a word, is a leave like any other."""
        self._tell_coordinator(Gone(child.who.id, 0))
        if status < 0:
            self._departures.add(f"{child} {_died(status)}", " and has left, the others go on", monotonic())
        else:
            place = f" in epoch {self._progress.epoch}" if self._progress and self._progress.begun else ""
            event = f"{child} {_died(status)}{place} before its script was over, as os._exit(0) does"
            self._departures.add(event, ", and has left; its samples went to the others", monotonic())

    # --- who is waited for --------------------------------------------------------------------------------

    def _check_waits(self, now_s: float) -> None:
        """The coordinator judges the others; this judges the coordinator."""
        if self._stages or not self._coordinator_runs():
            return
        ended_for_s = now_s - self._workers_ended_s if self._workers_ended_s is not None else 0.0
        if now_s - self._heard_s > self._patience_s:
            self._late("report its progress")
        elif ended_for_s > self._patience_s:
            self._late("end after its workers")

    def _late(self, what: str) -> None:
        sentence = f"waited {self._patience_s:g} s for the coordinator to {what}"
        self._fail(Failure(LATE, ExitCode.DEADLINE_PASSED, sentence))

    # --- the end ------------------------------------------------------------------------------------------

    def _close(self) -> int:
        """Tell how it went, the cause of a failure first; returns the exit code."""
        coordinator = self._family.children.get(COORDINATOR)
        if coordinator is not None and coordinator.status == 0:
            # a process that starts late finds nobody: the run was over, and well
            self._failures = [failure for failure in self._failures if failure.rank != LEFT_ALONE]
        cause = cause_of(self._failures)
        self._departures.end(well=cause is None)
        code = cause.code if cause is not None else ExitCode.OK
        if cause is not None:
            if cause.text:
                self._screen.error(cause.text)
            self._screen.error(f"paceline: {cause.sentence}")
        try:
            summary = settle_summary(self._run_dir, self._known(), code)
        except WriteError as error:
            summary = self._known()
            if code == ExitCode.OK:
                code = error.exit_code
                self._screen.error(f"paceline: {error}")
        for line in result_lines(summary):
            self._screen.line(line)
        if code != ExitCode.WRITE_FAILED:
            self._screen.line(report_line(self._run_dir, self._write_report))
        return code

    def _known(self) -> dict[str, object]:
        settings, progress = self._resolved.settings, self._progress
        return {
            "pace": progress.pace if progress else settings.pace.name,
            "workers": settings.workers,
            "servers": settings.servers,
            "samples": progress.samples if progress else 0,
            "updates": progress.version if progress else 0,
        }
