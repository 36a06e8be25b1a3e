"""What a worker's session takes from where it runs: who it is, what time it is, and what it may do there."""

from __future__ import annotations

import atexit
import os
import socket
import time
from collections.abc import Callable

from paceline.errors import ConfigError


def num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Surroundings:
    """Those of a process of its own; an engine that only pretends to have processes puts others in their place.

    `engine` and `because` are what `paceline.init()` says of it.
    """

    engine = "local"
    because = "`paceline run` started this process"
    address = "127.0.0.1"
    """Where other workers reach this one."""
    may_fork = True
    """Whether a DataLoader may have processes of its own."""
    may_use_devices = True
    """Whether a model may be on an accelerator."""

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()

    @property
    def host(self) -> str:
        """This machine."""
        return socket.gethostname()

    @property
    def overlaps(self) -> bool:
        """Whether a group's sums may begin during this worker's backward pass: PACELINE_OVERLAP. Raises ConfigError."""
        wanted = os.environ.get("PACELINE_OVERLAP", "").strip() or "yes"
        if wanted not in ("yes", "no"):
            raise ConfigError(f"PACELINE_OVERLAP: {wanted!r} is not allowed, it must be yes or no")
        return wanted == "yes"

    def now_s(self) -> float:
        """The time that computing and waiting are counted in."""
        return time.perf_counter()

    def cpu_s(self) -> float:
        """The processor time that this process has used."""
        return time.process_time()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def spend(self, samples: int) -> None:
        """Let the time pass that computing on so many samples takes; here it has passed already."""

    def at_exit(self, call: Callable[[], None]) -> None:
        """Call this when the script is over."""
        atexit.register(call)
