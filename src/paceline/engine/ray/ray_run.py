"""`paceline run --engine ray`: the supervisor of a run whose workers and servers are elsewhere.

Two processes are its own: the coordinator, since the run directory is here, and the broker, which speaks with Ray.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic

from paceline.config import Resolved
from paceline.engine.local.blame import DIED, LATE, Failure, cause_of
from paceline.engine.local.child import Brief, name_of, start
from paceline.engine.local.family import Child, Family
from paceline.engine.local.run_dir import LOGS
from paceline.engine.local.supervisor import Supervisor
from paceline.engine.ray.broker import began_with
from paceline.engine.ray.cluster import check_installed
from paceline.engine.ray.key import handed, key_of_run
from paceline.engine.torchrun.ending import write_reason
from paceline.errors import ExitCode, PeerLostError, WriteError
from paceline.messages import COORDINATOR, Address, Halt, Listening, Message, Placed, Said
from paceline.ports import Delivery
from paceline.roles.patience import LEAST_WAIT_S
from paceline.transport.connection import listener_at
from paceline.transport.shm import SocketPort

BROKER = Address("broker")
MODULES = {
    "broker": "paceline.engine.ray.broker_main",
    "coordinator": "paceline.engine.torchrun.coordinator_main",
}
RAY_S = 10.0
"""How much longer than a process of this machine the broker may take to end: it ends others first, and leaves Ray."""
JOIN_S = 120.0
"""How long the broker may take to join Ray, beside what it waits for room."""


class RayFamily(Family):
    """The broker at first; the coordinator once Ray has room for the others."""

    def __init__(self, resolved: Resolved, port: SocketPort, key: bytes) -> None:
        super().__init__(resolved, port)
        self._key = key

    def start(self) -> None:
        """Start the broker."""
        self.add(BROKER, self._resolved, "ray")

    def add(self, who: Address, resolved: Resolved, log: str, host: str = "") -> Child:
        """Start a process that has the job's key."""
        brief = Brief(self._token, who.role, who.id, 0, os.getpid(), -1, -1, resolved, host)
        with handed(self._key, os.environ) as given, ExitStack() as stack:
            # nobody connects to the broker
            listener = stack.enter_context(listener_at(name_of(self._token, who))) if who == COORDINATOR else None
            started = start(brief, listener, (), MODULES, environ=given.environ, given_fds=(given.fd,))
        self._port.adopt(who, started.sock)
        self.children[who] = child = Child(who, started, Path(self._resolved.settings.out) / LOGS / f"{log}.log")
        return child


class RayRun(Supervisor):
    """One run under Ray, from its directory to its exit code."""

    def __init__(self, resolved: Resolved, write_report: Callable[[Path], Path]) -> None:
        check_installed()
        super().__init__(resolved, write_report)
        self._ray_family = self._family = RayFamily(resolved, self._port, key_of_run(os.environ))
        self._num_workers = resolved.settings.workers
        self._placed_by_s = monotonic() + JOIN_S + 3 * max(resolved.settings.patience_s, LEAST_WAIT_S)

    # --- what is heard ------------------------------------------------------------------------------------

    def _take(self, delivery: Delivery) -> None:
        match delivery.message:
            case Placed(host=host, num_workers=num_workers):
                self._begin(os.environ.get("PACELINE_HOST") or host, num_workers)
            case Listening() as listening:
                self._tell_broker(listening)
            case Said(lines=lines):
                for line in lines:
                    self._screen.line(line)
            case _:
                super()._take(delivery)

    def _begin(self, host: str, num_workers: int) -> None:
        """There is room: the coordinator starts, and tells where the others reach it."""
        if self._failures:
            return
        wanted = self._resolved.settings.workers
        if num_workers < wanted:
            self._screen.error(f"paceline: there is room for {num_workers} workers of {wanted} now; the others join when there is more")
        self._num_workers, self._heard_s = num_workers, monotonic()
        self._watch(self._ray_family.add(COORDINATOR, began_with(self._resolved, num_workers), "coordinator", host))

    def _is_shown(self, child: Child) -> bool:
        return child.who != BROKER and super()._is_shown(child)

    def _tell_broker(self, message: Message) -> None:
        with suppress(PeerLostError):
            self._port.send(BROKER, message)

    # --- ends ---------------------------------------------------------------------------------------------

    def _fail(self, failure: Failure) -> None:
        is_first = not self._failures
        super()._fail(failure)
        if is_first:
            self._tell_broker(Halt(failure.code, failure.sentence))

    def _end_in_stages(self, grace_s: float) -> None:
        super()._end_in_stages(grace_s + RAY_S)

    def _bury(self, child: Child) -> None:
        if child.who != BROKER:
            super()._bury(child)
            return
        self._hear()
        self._selector.unregister(child.pidfd)
        status = child.reap()
        if not self._failures and (status or self._coordinator_runs()):
            how = "was lost: its node of the Ray cluster is gone, or it was killed"
            sentence = f"the connection with Ray (pid {child.pid}) {how}; workers and servers end with it, and so does the run"
            self._fail(Failure(DIED, ExitCode.PEER_LOST, sentence))

    def _coordinator_ended(self, child: Child, status: int, ending: bool) -> None:
        super()._coordinator_ended(child, status, ending)
        if status == 0 and not ending:
            self._tell_broker(Halt(0, ""))

    def _check_waits(self, now_s: float) -> None:
        if COORDINATOR in self._family.children:
            super()._check_waits(now_s)
        elif not self._stages and now_s > self._placed_by_s:
            self._fail(Failure(LATE, ExitCode.DEADLINE_PASSED, "waited for Ray to make room for the run, and it gave no answer"))

    def _close(self) -> int:
        code = super()._close()
        cause = cause_of(self._failures)
        if code and cause is not None:
            with suppress(WriteError):
                write_reason(self._run_dir, code, cause.sentence)
        return code

    def _known(self) -> dict[str, object]:
        return {**super()._known(), "workers": self._num_workers}
