"""What can go wrong, by who can mend it; each class knows the exit code that a run ends with.

A message is one sentence: what, where, which value, what is allowed.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a run ended, for scripts that start it; signals add 128 as shells do."""

    OK = 0
    SCRIPT_FAILED = 1
    BAD_USAGE = 2
    WRITE_FAILED = 3
    PEER_LOST = 4
    DEADLINE_PASSED = 5
    INTERRUPTED = 130
    TERMINATED = 143


class PacelineError(Exception):
    """Base of every error that is raised on purpose; `exit_code` is what the process ends with."""

    exit_code = ExitCode.SCRIPT_FAILED


class ConfigError(PacelineError, ValueError):
    """A setting or an argument that is not allowed."""

    exit_code = ExitCode.BAD_USAGE


class UsageError(PacelineError):
    """The script uses the library in a way that cannot work (two optimizers, no gradients, ...)."""


class WriteError(PacelineError, OSError):
    """The run directory could not be written."""

    exit_code = ExitCode.WRITE_FAILED


class PeerLostError(PacelineError, ConnectionError):
    """A process that the run cannot do without is gone."""

    exit_code = ExitCode.PEER_LOST


class DeadlineError(PacelineError, TimeoutError):
    """A wait passed its deadline; the message names whom it waited for."""

    exit_code = ExitCode.DEADLINE_PASSED


class ProtocolError(PacelineError):
    """A message that no correct peer sends."""

    exit_code = ExitCode.PEER_LOST


class RunEnded(PacelineError):
    """The run was ended from elsewhere while this worker waited; `code` is the run's exit code."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
