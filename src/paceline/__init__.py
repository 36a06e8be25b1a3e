"""Train a PyTorch model in lockstep, free-running, or anywhere between, and account for every sample.

`paceline.init()` gives a script its run; `paceline run SCRIPT` starts it with several workers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


_PLACES = {"Pace": "paceline.pace", "parse_pace": "paceline.pace", "Run": "paceline.session", "init": "paceline.session"}


def __getattr__(name: str) -> Any:
    """Everything is imported when it is first asked for: `init` and `Run` bring torch with them, and the command is to start at once."""
    if name == "__version__":
        from importlib.metadata import version

        return version("paceline")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES.get(name, "paceline.errors")), name)
