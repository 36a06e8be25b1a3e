"""The store of torch.distributed, kept at one address only: without a socket of ours it listens at all of them."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore


def serve_store(host: str, port: int, timeout: timedelta) -> tuple[TCPStore, int]:
    """A store at `host` and `port` (0: a free one), and its port. Raises OSError, and RuntimeError with torch's own reason."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.create_server(address[:2], family=family, backlog=1024) as listener:
        port = int(listener.getsockname()[1])
        return TCPStore(host, port, None, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()), port


def first_line(error: Exception) -> str:
    """What torch says, without the C++ stack in the lines behind it."""
    return next(iter(str(error).splitlines()), type(error).__name__)
