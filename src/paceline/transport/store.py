"""The store of torch.distributed, kept at one address only: without a socket of ours it listens at all of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore


def serve_store(host: str, port: int, timeout: timedelta) -> tuple[TCPStore, int]:
    """A store at `host` and `port` (0: a free one), and its port. Raises OSError, and RuntimeError with torch's own reason."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.create_server(address[:2], family=family, backlog=1024) as listener:
        port = int(listener.getsockname()[1])
        return TCPStore(host, port, None, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()), port


def hang_up(host: str, port: int) -> None:
    """End every connection of this process to the store at `host` and `port`; whoever waits for an answer has an error instead.

    torch's own client takes no deadline for an answer, and shows nobody its socket.
    """
    with suppress(OSError):
        there = {info[4][:2] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        for entry in list(Path("/proc/self/fd").iterdir()):
            with suppress(OSError):  # gone in the meantime, or not connected
                if os.readlink(entry).startswith("socket:"):
                    _end_if_to(there, os.dup(int(entry.name)))


def _end_if_to(there: Collection[tuple[object, ...]], fd: int) -> None:
    with socket.socket(fileno=fd) as one:
        if one.family in (socket.AF_INET, socket.AF_INET6):
            peer, port = one.getpeername()[:2]
            if (peer.removeprefix("::ffff:"), port) in there:
                one.shutdown(socket.SHUT_RDWR)


def first_line(error: Exception) -> str:
    """What torch says, without the C++ stack in the lines behind it."""
    return next(iter(str(error).splitlines()), type(error).__name__)
