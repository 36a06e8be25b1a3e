"""A process in which a virtual run is the same whoever starts it."""

from __future__ import annotations

import os
import sys

FIXED = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
"""How Python hashes and torch splits its sums: both are decided when a process starts."""


def begin_anew() -> None:
    """Unless it was started with fixed hashes, let this process begin again, with the same arguments."""
    if "PYTHONHASHSEED" not in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **FIXED})
