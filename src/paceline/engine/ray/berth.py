"""The actor of one process of a run: starts it where Ray has found room, and tells what it prints, reports and ends with.

The process is a child of the actor's own and dies with it, so Ray has its place and its life in hand, and the process is the same as
under every other engine. Called by one caller, one call at a time; what goes in and out are plain values.
"""

from __future__ import annotations

import os
import select
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from paceline.engine.local.child import Brief, await_listening, die_with, name_of, start
from paceline.engine.local.family import Child
from paceline.engine.ray.key import handed
from paceline.engine.torchrun.place import machine
from paceline.errors import PacelineError
from paceline.messages import SUPERVISOR, encode
from paceline.transport.connection import listener_at
from paceline.transport.shm import SocketPort

MODULES = {
    "server": "paceline.engine.torchrun.server_main",
    "worker": "paceline.engine.ray.worker_main",
}
MOST_AT_ONCE_BYTES = 1 << 20


class Berth:
    """Room for one process; it may have several in turn, each a life of the same worker."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._port = SocketPort(SUPERVISOR)
        self._life = -1
        # an actor's process outlives a raylet that is killed, and would keep its own child, which Ray takes for dead
        die_with(os.getppid())

    def where(self) -> dict[str, Any]:
        """`host` is this node's address for others, `machine` what it is, `life` that of the process that runs here, -1 for none."""
        import ray

        life = self._life if self._child is not None else -1
        return {"host": str(ray.util.get_node_ip_address()), "machine": machine(), "life": life}

    def begin(self, brief: bytes, key: bytes, environ: dict[str, str], directory: str) -> dict[str, Any]:
        """Start a process in `directory`; returns where a server listens, or in `error` why nothing has started."""
        told = msgspec.json.decode(brief, type=Brief)
        script = told.resolved.settings.script
        try:
            os.chdir(directory)
        except OSError as error:
            return {"error": f"{told.me} cannot start on {socket.gethostname()}: its directory {directory}: {error.strerror}"}
        if not os.path.isfile(script):
            return {"error": f"{told.me} cannot start on {socket.gethostname()}: the script {script} is not in {directory} there"}
        arguments = told.resolved.settings.args if told.role == "worker" else ()
        try:
            with handed(key, {**os.environ, **environ}) as given, ExitStack() as stack:
                listener = stack.enter_context(listener_at(name_of(told.token, told.me))) if told.role == "server" else None
                started = start(told, listener, arguments, MODULES, environ=given.environ, given_fds=(given.fd,))
        except OSError as error:
            return {"error": f"{told.me} cannot start on {socket.gethostname()}: {error.strerror or error}"}
        self._port.adopt(told.me, started.sock)
        # what it prints is kept where the run's directory is, which may be another machine
        self._child, self._life = Child(told.me, started, Path(os.devnull)), told.incarnation
        if told.role != "server":
            return {}
        try:
            listening = await_listening(self._port, told.me, self._child.output)
            return {"host": listening.host, "port": listening.port}
        except PacelineError as error:
            return {"error": str(error)}

    def news(self, timeout_s: float) -> dict[str, Any]:
        """What has come from the process, at the latest after `timeout_s`: `output`, `told`, and `status` once it has ended."""
        child = self._child
        if child is None:
            return {"output": b"", "told": [], "status": 0}
        self._wait(child, timeout_s)
        output = self._output(child, MOST_AT_ONCE_BYTES)
        told = self._told()
        status = None
        if select.select([child.pidfd], [], [], 0.0)[0]:
            status = child.reap()
            output += self._output(child, 64 * MOST_AT_ONCE_BYTES)
            told += self._told()
            child.close()
            self._child = None
        return {"output": output, "told": told, "status": status}

    def _wait(self, child: Child, timeout_s: float) -> None:
        poll = select.poll()
        for fd in (child.pidfd, self._port.fileno(), *(() if child.output.ended else (child.output.fd,))):
            poll.register(fd, select.POLLIN)
        poll.poll(1000.0 * timeout_s)

    def _output(self, child: Child, most_bytes: int) -> bytes:
        data = bytearray()
        child.output.dry = False
        while len(data) < most_bytes and not (child.output.ended or child.output.dry):
            data += child.output.take()
        return bytes(data)

    def _told(self) -> list[bytes]:
        told: list[bytes] = []
        while (delivery := self._port.receive(0.0)) is not None:
            if delivery.message is not None:
                told.append(encode(delivery.message))
        return told

    def signal(self, number: int) -> dict[str, Any]:
        """Signal the process and all that it has started."""
        if self._child is not None:
            self._child.signal(number)
        return {}
