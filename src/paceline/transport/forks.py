"""Open ports, which a forked child lets go: a DataLoader's worker has their descriptors too, and would keep connections alive."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """What has descriptors that a child must not keep."""

    def abandon(self) -> None:
        """Close the descriptors of a forked child's copy, and nothing that the parent still uses."""
        ...


open_ports: weakref.WeakSet[Forkable] = weakref.WeakSet()
"""A port adds itself when it is made and takes itself out when it is closed."""


def _abandon_ports() -> None:
    for port in list(open_ports):
        port.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_ports)
