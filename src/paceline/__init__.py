"""Train a PyTorch model in lockstep, free-running, or anywhere between, and account for every sample.

`paceline.init()` gives a script its run; `paceline run SCRIPT` starts it with several workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.errors import (
    ConfigError,
    DeadlineError,
    PacelineError,
    PeerLostError,
    ProtocolError,
    RunEnded,
    UsageError,
    WriteError,
)
from paceline.pace import Pace, parse_pace

if TYPE_CHECKING:
    from paceline.session import Run, init

__all__ = [
    "ConfigError",
    "DeadlineError",
    "Pace",
    "PacelineError",
    "PeerLostError",
    "ProtocolError",
    "Run",
    "RunEnded",
    "UsageError",
    "WriteError",
    "__version__",
    "init",
    "parse_pace",
]

__version__: str


def __getattr__(name: str) -> Any:
    """`init` and `Run` bring torch with them, so they are imported when they are first asked for."""
    if name in ("Run", "init"):
        import paceline.session

        return getattr(paceline.session, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("paceline")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
