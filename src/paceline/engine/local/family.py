"""The processes of a run, as their parent sees them: started, heard, and at the end all gone, whatever they do."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from paceline.config import Resolved
from paceline.engine.local.child import Brief, Started, name_of, start
from paceline.engine.local.output import Output
from paceline.engine.local.run_dir import LOGS
from paceline.messages import COORDINATOR, Address
from paceline.transport.connection import listener_at
from paceline.transport.shm import SocketPort


def signal_name(returncode: int) -> str:
    """The name of the signal that a process died of, given its negative exit status.

    >>> signal_name(-9)
    'SIGKILL'
    """
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


class Child:
    """One process: its output, its exit status once it has ended (None while it runs), whether it ends as it is meant to."""

    def __init__(self, who: Address, started: Started, log: Path) -> None:
        assert started.process.stdout is not None
        self.who = who
        self.pid = started.process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.status: int | None = None
        self.said_bye = False
        self.output = Output(started.process.stdout.fileno(), log)
        self._process = started.process

    def __str__(self) -> str:
        return f"{self.who} (pid {self.pid})"

    @property
    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return self.status is None

    def signal(self, number: int) -> None:
        """Send a signal to the process and all it has started, if it still runs."""
        if self.runs:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def reap(self) -> int:
        """Take the exit status of a process that has ended; what it has left running is killed."""
        # before the wait: until then the process group's number cannot be anyone else's
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.status = self._process.wait()
        os.close(self.pidfd)
        return self.status

    def close(self) -> None:
        """Let the pipe and the log go."""
        self.output.close()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Family:
    """All children of a run by address, and the port to them."""

    def __init__(self, resolved: Resolved, port: SocketPort) -> None:
        self._resolved = resolved
        self._port = port
        self._token = token_hex(16)
        self.children: dict[Address, Child] = {}

    def start(self) -> None:
        """Start the coordinator, the servers and the workers; those that others connect to can be reached at once."""
        settings = self._resolved.settings
        for who in (COORDINATOR, *(Address("server", number) for number in range(settings.servers))):
            self._start(who, listens=True)
        for number in range(settings.workers):
            self._start(Address("worker", number), listens=False)

    def _start(self, who: Address, *, listens: bool) -> None:
        brief = Brief(self._token, who.role, who.id, 0, os.getpid(), -1, -1, self._resolved)
        listener = listener_at(name_of(self._token, who)) if listens else None
        try:
            started = start(brief, listener, self._resolved.settings.args if who.role == "worker" else ())
        finally:
            if listener is not None:
                listener.close()
        self._port.adopt(who, started.sock)
        name = "coordinator" if who == COORDINATOR else f"{who.role}-{who.id}"
        self.children[who] = Child(who, started, Path(self._resolved.settings.out) / LOGS / f"{name}.log")

    def workers(self) -> list[Child]:
        """The workers, by number."""
        return [child for who, child in self.children.items() if who.role == "worker"]

    def running(self) -> list[Child]:
        """Those that have not ended."""
        return [child for child in self.children.values() if child.runs]

    def signal(self, number: int, *, spare: Iterable[Address] = ()) -> None:
        """Signal every child that runs, but those to be spared."""
        spared = set(spare)
        for who, child in self.children.items():
            if who not in spared:
                child.signal(number)

    def kill(self) -> None:
        """End every child at once, and take its exit status."""
        self.signal(signal.SIGKILL)
        for child in self.running():
            child.reap()

    def close(self) -> None:
        """Let all pipes and logs go."""
        for child in self.children.values():
            child.close()
