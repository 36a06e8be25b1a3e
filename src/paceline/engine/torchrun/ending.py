"""How a launched script ends: the others are told, the launcher and people find the reason, and nothing is left running.

The script is not ours to run, so its end is met where Python passes: the exception hook, SIGTERM, and the exit.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from paceline.config import Resolved
from paceline.engine.link import Link
from paceline.engine.local.blame import failed_of
from paceline.engine.local.child import end
from paceline.engine.local.results import report_line, result_lines
from paceline.engine.local.run_dir import settle_summary
from paceline.engine.torchrun.nursery import TICK_S, Nursery
from paceline.errors import ExitCode, PacelineError, PeerLostError, RunEnded, WriteError
from paceline.messages import COORDINATOR, Address, Bye, Failed
from paceline.ports import Port

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
REASON = "reason.json"
GRACE_S = 10.0
"""How long children may take to end once this worker has failed, or the run is over; launchers kill after about 30 s."""


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class Ending:
    """The end of the script of worker `who`, watched for from `watch` on; `write_report` is for the one that has the run directory."""

    def __init__(self, link: Link, port: Port, nursery: Nursery, write_report: Callable[[Path], Path]) -> None:
        self._link, self._port, self._nursery, self._write_report = link, port, nursery, write_report
        self._resolved: Resolved = link.resolved
        self._who = Address("worker", link.member.worker)
        self._failed: Failed | None = None
        self._is_over = False
        self._former_hook = sys.excepthook
        self._former_unraisable_hook = sys.unraisablehook

    def watch(self) -> None:
        """From now on the end of this process is this object's."""
        self._former_hook, sys.excepthook = sys.excepthook, self._raised
        self._former_unraisable_hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
        atexit.register(self._over)

    # --- why it ends --------------------------------------------------------------------------------------

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The script let an exception through; a sentence of ours stands for itself."""
        if isinstance(error, KeyboardInterrupt):
            self._failed = Failed(ExitCode.INTERRUPTED, f"{self._who} was interrupted")
        elif isinstance(error, RunEnded):
            self._failed = Failed(error.code, str(error))
        else:
            self._failed = failed_of(error, self._who, self._resolved.settings.script)
        if self._failed.code:
            write_error_file(error, os.environ.get(ERROR_FILE))
        if not isinstance(error, PacelineError):
            self._former_hook(kind, error, trace)
            return
        _exit_with(self._failed)

    def _unraisable(self, raised: sys.UnraisableHookArgs) -> None:
        """Loops that are closed on the way out cannot say so to a run that has ended; its cause is told already."""
        if self._failed is None or not isinstance(raised.exc_value, PacelineError):
            self._former_unraisable_hook(raised)

    def _terminated(self, number: int, _: FrameType | None) -> None:
        if self._is_over:
            os._exit(ExitCode.TERMINATED)
        self._failed = Failed(ExitCode.TERMINATED, f"{self._who} was terminated by {signal.Signals(number).name}")
        raise SystemExit(int(ExitCode.TERMINATED))

    # --- the end ------------------------------------------------------------------------------------------

    def _over(self) -> None:
        """The script is over, however: tell it, and wait for what this process has started."""
        self._is_over = True
        is_silent = self._failed is None and not self._link.joined
        if is_silent:
            script = self._resolved.settings.script
            sentence = f"{self._who}: {script} ended without calling run.prepare(...), so there was nothing to train"
            self._failed = Failed(ExitCode.SCRIPT_FAILED, sentence)
            sys.stderr.write(f"paceline: {sentence}\n")
        is_late = is_silent or (self._failed is None and not self._leaves_well())
        with suppress(PeerLostError):
            told = Bye() if self._failed is None else Failed(self._failed.code, self._failed.sentence)
            self._port.send(COORDINATOR, told)
            if self._failed is None:
                self._await_run()
        self._port.close()
        self._nursery.await_end(GRACE_S)
        code = self._tell()
        if code and (is_late or self._failed is None):
            end(code)  # Python would end with 0

    def _await_run(self) -> None:
        """Until those that this process has started are done with the run; what is stuck then is not waited for any longer."""
        while self._nursery.runs:
            delivery = self._port.receive(TICK_S)
            if delivery is not None and delivery.message is None and delivery.sender == COORDINATOR:
                return

    def _leaves_well(self) -> bool:
        """What the others still want of this worker comes before its goodbye."""
        try:
            self._link.leave()
            return True
        except PacelineError as error:
            code = error.code if isinstance(error, RunEnded) else error.exit_code
            self._failed = Failed(code, str(error))
            if code:
                sys.stderr.write(f"paceline: {error}\n")
            return False

    def _tell(self) -> int:
        """The last lines and the reason, where the coordinator was; returns the code that this process should end with."""
        cause = self._nursery.outcome()
        own = 0 if self._failed is None else int(self._failed.code)
        if not self._nursery.has_coordinator:
            return own
        code = int(cause.code) if cause is not None else 0
        run_dir = Path(self._resolved.settings.out)
        if cause is not None and (self._failed is None or cause.sentence != self._failed.sentence):
            sys.stderr.write(f"paceline: {cause.sentence}\n")
        try:
            summary = settle_summary(run_dir, {}, code)
            if cause is not None:
                write_reason(run_dir, code, cause.sentence)
        except WriteError as error:
            sys.stderr.write(f"paceline: {error}\n")
            return own or code or int(error.exit_code)
        for line in [*result_lines(summary), report_line(run_dir, self._write_report)]:
            sys.stdout.write(f"{line}\n")
        return own or code


def plainly(former: Hook) -> Hook:
    """An exception hook for the time before there is a run: an error of ours is a sentence and its exit code, others are `former`'s."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, PacelineError):
            former(kind, error, trace)
            return
        write_error_file(error, os.environ.get(ERROR_FILE))
        _exit_with(Failed(error.exit_code, str(error)))

    return hook


def _exit_with(failed: Failed) -> NoReturn:
    """In an exception hook SystemExit is how Python takes its exit code."""
    sys.stderr.write(f"paceline: {failed.sentence}\n")
    raise SystemExit(int(failed.code))


def write_reason(run_dir: Path, code: int, sentence: str) -> None:
    """Say in the run directory why the run has ended. Raises WriteError."""
    path = run_dir / REASON
    try:
        path.write_text(json.dumps({"exit": code, "reason": sentence}) + "\n", encoding="utf-8")
    except OSError as error:
        raise WriteError(f"{path} could not be written: {error.strerror or error}") from error


def write_error_file(error: BaseException, path: str | None) -> None:
    """Tell the launcher what was raised, as torch's `@record` does; one that is there already has been told by the script."""
    if not path or os.path.exists(path):
        return
    stack = "".join(traceback.format_exception(error))
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    text = json.dumps({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}})
    # the launcher goes without it rather than that the cause is hidden by another error
    with suppress(OSError):
        Path(path).write_text(text, encoding="utf-8")
