"""A worker's process: runs the user's script as `python SCRIPT ARGS...` would, and reports how it ended."""

from __future__ import annotations

import runpy
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from paceline.engine.link import Link, Member, current, install
from paceline.engine.local.blame import failed_of
from paceline.engine.local.child import Brief, begin, name_of
from paceline.errors import ExitCode, PeerLostError, RunEnded
from paceline.messages import COORDINATOR, SUPERVISOR, Address, Bye, Failed, Message
from paceline.ports import Port
from paceline.transport.shm import SocketPort


def connect(brief: Brief, port: SocketPort) -> Port:
    """Reach the coordinator and every server, here over the port to the supervisor; the link is this process's own from now on."""
    settings = brief.resolved.settings
    for peer in (COORDINATOR, *(Address("server", shard) for shard in range(settings.servers))):
        port.connect(peer, name_of(brief.token, peer))
    member = Member(brief.id, brief.incarnation, settings.workers, settings.servers)
    install(Link(port, member, brief.resolved))
    return port


def run_script(script: str, arguments: tuple[str, ...]) -> None:
    """Run it as the main module, as `python SCRIPT ARGS...` does."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


Connect = Callable[[Brief, SocketPort], Port]


class WorkerProcess:
    """The script between its start and its report.

    `connect` joins the processes of the run, given the port to whoever started this one; returns the port to the coordinator.
    """

    def __init__(self, port: SocketPort, brief: Brief, connect: Connect) -> None:
        self._port = port
        self._brief = brief
        self._connect = connect
        self._far: Port = port
        self._script = brief.resolved.settings.script

    def run(self) -> int:
        """Run the script and tell how it ended; returns the exit code."""
        try:
            self._far = self._connect(self._brief, self._port)
            self._play()
        except RunEnded as end:
            self._tell(SUPERVISOR, Bye())
            return end.code
        except SystemExit as end:
            return self._exited(end.code)
        except Exception as error:  # noqa: BLE001 - whatever the script lets through is reported
            return self._fail(failed_of(error, self._brief.me, self._script))
        return self._finished()

    def _play(self) -> None:
        """The script to its end; if that is a good one, what the others still want of this worker follows."""
        exited: SystemExit | None = None
        try:
            run_script(self._script, self._brief.resolved.settings.args)
        except SystemExit as end:
            if end.code not in (0, None):
                raise
            exited = end
        if (link := current()) is not None:
            link.leave()
        if exited is not None:
            raise exited

    def _finished(self) -> int:
        if not self._has_joined():
            sentence = f"{self._brief.me}: {self._script} ended without calling run.prepare(...), so there was nothing to train"
            return self._fail(Failed(ExitCode.SCRIPT_FAILED, sentence))
        return self._leave()

    def _exited(self, given: object) -> int:
        if given not in (0, None):
            return self._fail(Failed(ExitCode.SCRIPT_FAILED, f"{self._brief.me}: {self._script} ended with sys.exit({given!r})"))
        return self._leave()

    def _leave(self) -> int:
        for who in (SUPERVISOR, COORDINATOR):
            self._tell(who, Bye())
        return ExitCode.OK

    def _has_joined(self) -> bool:
        link = current()
        return link is not None and link.joined

    def _fail(self, failed: Failed) -> int:
        # the supervisor first: it has to know the cause before it hears of what follows from it
        self._tell(SUPERVISOR, failed)
        self._tell(COORDINATOR, Failed(failed.code, failed.sentence))
        return failed.code

    def _tell(self, who: Address, message: Message) -> None:
        with suppress(PeerLostError):
            (self._port if who == SUPERVISOR else self._far).send(who, message)

    def close(self) -> None:
        """End every connection; what is still queued is sent first."""
        if self._far is not self._port:
            self._far.close()
        self._port.close()


def run_worker(connect: Connect) -> int:
    """Run a worker. A KeyboardInterrupt goes through: Python then ends by SIGINT, which tells the supervisor what it was."""
    brief, port = begin()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.excepthook = _excepthook
    worker = WorkerProcess(port, brief, connect)
    try:
        code = worker.run()
        sys.stdout.flush()
    finally:
        worker.close()
    return code


def _excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


if __name__ == "__main__":
    sys.exit(run_worker(connect))
