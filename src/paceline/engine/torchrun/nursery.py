"""The processes that this worker has started for the run, the coordinator or a server: heard, logged, and never left behind.

A thread of its own does that, while the script has the main thread. They end by themselves with the run, or with this
process.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from time import monotonic

import msgspec

from paceline.engine.local.blame import Failure, cause_of, failure_of
from paceline.engine.local.child import Brief, await_listening, name_of, start
from paceline.engine.local.family import Child
from paceline.engine.local.run_dir import LOGS
from paceline.errors import ExitCode, WriteError
from paceline.messages import COORDINATOR, SUPERVISOR, Address, Failed, Progress, Remark
from paceline.transport.connection import listener_at
from paceline.transport.dial import Endpoint
from paceline.transport.shm import SocketPort

TICK_S = 0.2
MODULES = {
    "coordinator": "paceline.engine.torchrun.coordinator_main",
    "server": "paceline.engine.torchrun.server_main",
}


class Nursery:
    """Children by address, from `start` on; `watch` begins once all have been started.

    `failures` are what they have reported, `progress` is the run as it was last told of. A coordinator that has not told of
    it for `patience_s` is killed, since whoever shares memory with it has no heartbeat of it.
    """

    def __init__(self, run_dir: Path, patience_s: float) -> None:
        self.children: list[Child] = []
        self.failures: list[Failure] = []
        self.progress: Progress | None = None
        self._run_dir = run_dir
        self._patience_s = patience_s
        self._token = token_hex(16)
        self._port = SocketPort(SUPERVISOR)
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._watch, name="paceline nursery", daemon=True)
        self._heard_s = self._judged_s = monotonic()

    # --- from the main thread -----------------------------------------------------------------------------

    def start(self, brief: Brief, modules: Mapping[str, str] = MODULES) -> Endpoint:
        """Start a child; returns where it listens. Raises ConfigError or DeadlineError when it does not."""
        try:
            (self._run_dir / LOGS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(f"the run directory {self._run_dir} cannot be written on {socket.gethostname()}: {error.strerror}") from error
        # the main thread starts it: the kernel ends a server with the thread that has
        with listener_at(self.name_of(brief.me)) as listener:
            started = start(brief, listener, (), modules)
        self._port.adopt(brief.me, started.sock)
        name = brief.role if brief.role == "coordinator" else f"{brief.role}-{brief.id}"
        child = Child(brief.me, started, self._run_dir / LOGS / f"{name}.log")
        self.children.append(child)
        told = await_listening(self._port, brief.me, child.output)
        return Endpoint(told.host, told.port)

    def brief(self, blank: Brief) -> Brief:
        """A brief with this nursery's token."""
        return msgspec.structs.replace(blank, token=self._token, supervisor_pid=os.getpid())

    def name_of(self, who: Address) -> str:
        """The abstract socket at which a child is reached on this machine."""
        return name_of(self._token, who)

    def watch(self) -> None:
        """Begin to hear the children."""
        if self.children:
            self._thread.start()

    @property
    def runs(self) -> bool:
        """Whether a child has not ended."""
        return self._thread.is_alive()

    def await_end(self, grace_s: float) -> None:
        """Until all children have ended; those that take longer than `grace_s` are killed."""
        deadline_s = monotonic() + grace_s
        while self._thread.is_alive():
            self._thread.join(TICK_S)
            if monotonic() > deadline_s:
                for child in self.children:
                    child.signal(9)
                self._thread.join(self._patience_s)
                return

    def outcome(self) -> Failure | None:
        """What has ended the run, when this process knows: it has the coordinator, and that has failed."""
        status = next((child.status for child in self.children if child.who == COORDINATOR), 0)
        if not status:
            return None
        return cause_of(self.failures) or Failure(0, ExitCode.PEER_LOST, f"the coordinator ended with status {status}")

    @property
    def has_coordinator(self) -> bool:
        """Whether the coordinator was started here."""
        return any(child.who == COORDINATOR for child in self.children)

    # --- the thread ---------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._heard_s = self._judged_s = monotonic()
        self._selector.register(self._port.fileno(), selectors.EVENT_READ, self._hear)
        for child in self.children:
            self._selector.register(child.output.fd, selectors.EVENT_READ, lambda child=child: self._read(child))
            self._selector.register(child.pidfd, selectors.EVENT_READ, lambda child=child: self._bury(child))
        while any(child.runs for child in self.children):
            for key, _ in self._selector.select(TICK_S):
                key.data()
            self._judge(monotonic())
        self._hear()
        for child in self.children:
            child.output.drain(partial(self._read, child))

    def _hear(self) -> None:
        while (delivery := self._port.receive(0.0)) is not None:
            match delivery.message:
                case Progress() as progress:
                    self.progress, self._heard_s = progress, monotonic()
                case Remark(sentence=sentence):
                    _say(f"paceline: {sentence}")
                case Failed() as failed:
                    self.failures.append(failure_of(failed))
                case _:
                    pass

    def _judge(self, now_s: float) -> None:
        if now_s - self._judged_s > self._patience_s / 2:
            # this process was stopped itself, and has heard nobody
            self._heard_s = now_s
        self._judged_s = now_s
        if now_s - self._heard_s <= self._patience_s:
            return
        for child in self.children:
            if child.who == COORDINATOR and child.runs:
                self._heard_s = now_s
                sentence = f"waited {self._patience_s:g} s for the coordinator to report its progress"
                self.failures.append(Failure(0, ExitCode.DEADLINE_PASSED, sentence))
                child.signal(9)

    def _read(self, child: Child) -> None:
        with suppress(WriteError):
            for line in child.output.read():
                _say(f"{child.who}: {line}")
        if child.output.ended and child.output.fd in self._selector.get_map():
            self._selector.unregister(child.output.fd)

    def _bury(self, child: Child) -> None:
        self._hear()
        self._selector.unregister(child.pidfd)
        child.reap()


def _say(line: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
