"""A process of the local engine and its parent: what it is told, how it starts, and that it never outlives the run.

A child is told everything in one memory file, talks to its parent over an inherited socket, and ends when that socket
does. Its environment carries the job's token, so that whatever it starts can be found.
"""

from __future__ import annotations

import ctypes
import faulthandler
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple, NoReturn

import msgspec

from paceline.config import Resolved
from paceline.engine.carry import take_bytes
from paceline.engine.local.output import Output
from paceline.errors import ConfigError, DeadlineError
from paceline.messages import SUPERVISOR, Address, Failed, Listening
from paceline.transport import memory
from paceline.transport.connection import pair
from paceline.transport.shm import SocketPort

TOKEN_VARIABLE = "PACELINE_JOB_TOKEN"
BRIEF_VARIABLE = "PACELINE_JOB_BRIEF"

MODULES = {
    "coordinator": "paceline.engine.local.coordinator_main",
    "server": "paceline.engine.local.server_main",
    "worker": "paceline.engine.local.worker_main",
}
_PR_SET_PDEATHSIG = 1
LISTEN_S = 60.0
"""How long a child may take until it listens where the others reach it: it imports first, on a machine that may be loaded."""


class Brief(msgspec.Struct, frozen=True):
    """What a child is told. `listener_fd` is the socket at which it is reached, -1 for a worker.

    Where processes speak over TCP, `host` and `port` (0: any) are where to listen, and `coordinator` is where that one is reached;
    `coordinator_name` is its abstract socket if it is on this machine. `servers` are all of that for each server.
    """

    token: str
    role: str
    id: int
    incarnation: int
    supervisor_pid: int
    supervisor_fd: int
    listener_fd: int
    resolved: Resolved
    host: str = ""
    coordinator: tuple[str, int] | None = None
    coordinator_name: str = ""
    servers: tuple[tuple[str, int, str], ...] = ()
    port: int = 0

    @property
    def me(self) -> Address:
        """Who the child is."""
        return Address(self.role, self.id)


def name_of(token: str, who: Address) -> str:
    """The abstract socket name at which `who` listens."""
    return f"paceline-{token}-{who.role}-{who.id}"


# --- the parent's side -----------------------------------------------------------------------------------


class Started(NamedTuple):
    """A child that runs: its process, and the parent's end of the socket between them."""

    process: subprocess.Popen[bytes]
    sock: socket.socket


def start(
    brief: Brief,
    listener: socket.socket | None,
    arguments: Sequence[str] = (),
    modules: Mapping[str, str] = MODULES,
    *,
    environ: Mapping[str, str] = os.environ,
    given_fds: Sequence[int] = (),
) -> Started:
    """Start a child in a session of its own, as the module of its role; its output is one pipe.

    `arguments` only show in a list of processes. `given_fds` are handed over as they are.
    """
    ours, theirs = pair()
    listener_fd = -1 if listener is None else listener.fileno()
    brief = msgspec.structs.replace(brief, supervisor_pid=os.getpid(), supervisor_fd=theirs.fileno(), listener_fd=listener_fd)
    brief_fd = memory.create_from("brief", msgspec.json.encode(brief))
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", modules[brief.role], f"{brief.me}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
            pass_fds=[fd for fd in (theirs.fileno(), listener_fd, brief_fd, *given_fds) if fd >= 0],
            env=environment_of(brief.role, brief.token, brief_fd, environ),
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(brief_fd)
    return Started(process, ours)


def await_listening(port: SocketPort, who: Address, output: Output, timeout_s: float = LISTEN_S) -> Listening:
    """Where a child that was just started listens, as it tells its parent over `port`.

    Raises ConfigError with what keeps it from that, or when it ends, with the last of its `output`; DeadlineError when it does not
    tell in time.
    """
    deadline_s = monotonic() + timeout_s
    while (left_s := deadline_s - monotonic()) > 0.0:
        delivery = port.receive(left_s)
        match None if delivery is None else delivery.message:
            case Listening() as listening:
                return listening
            case Failed(sentence=sentence):
                raise ConfigError(sentence)
            case None if delivery is not None:
                said = output.last_words()
                raise ConfigError(f"{who} ended as it began, and printed {f'last: {said}' if said else 'nothing'}")
            case _:
                pass
    raise DeadlineError(f"{who} did not listen within {timeout_s:g} s")


def environment_of(role: str, token: str, brief_fd: int, environ: Mapping[str, str]) -> dict[str, str]:
    """A child's environment: the caller's, one thread unless said otherwise, and malloc that keeps what is freed."""
    environment = {**environ, TOKEN_VARIABLE: token, BRIEF_VARIABLE: str(brief_fd)}
    environment.setdefault("OMP_NUM_THREADS", "1")
    # glibc then asks for huge pages: fewer address look-ups in every pass over gradients and optimizer state
    environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    if role == "worker":
        # gradients are freed and allocated in every step: given back to the kernel, their pages cost more than the step's adds
        environment.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 32))
        environment.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 32))
    return environment


# --- the child's side ------------------------------------------------------------------------------------


def die_with(parent_pid: int) -> bool:
    """Have the kernel kill this process when its parent is gone; returns whether the parent is there still."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent_pid


def begin(*, dies_with_parent: bool = True) -> tuple[Brief, SocketPort]:
    """Read the brief and open the port to the supervisor. The first thing a child does.

    With `dies_with_parent` the kernel kills it when the supervisor is gone; otherwise it hears the end of its socket.
    """
    fd = int(os.environ.pop(BRIEF_VARIABLE))
    brief = msgspec.json.decode(take_bytes(fd), type=Brief)
    if dies_with_parent and not die_with(brief.supervisor_pid):
        sys.exit(4)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # one that is sent to this process alone is for the supervisor to tell, not for a traceback of ours
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    os.set_inheritable(brief.supervisor_fd, False)
    port = SocketPort(brief.me)
    port.adopt(SUPERVISOR, socket.socket(fileno=brief.supervisor_fd))
    return brief, port


def end(code: int) -> NoReturn:
    """End this process at once, with this code whatever Python would say; what was printed goes out first."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def listener_of(brief: Brief) -> socket.socket:
    """The socket that the supervisor has opened for this child."""
    os.set_inheritable(brief.listener_fd, False)
    return socket.socket(fileno=brief.listener_fd)
