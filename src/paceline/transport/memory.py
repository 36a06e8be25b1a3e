"""Memory that processes share: anonymous files that vanish with their last user, handed over as descriptors.

A memory file is sealed at birth: it never grows or shrinks, so nobody who maps it can be hit by a peer's truncation.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from paceline.errors import ProtocolError

_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0x2) | getattr(fcntl, "F_SEAL_GROW", 0x4)


def create(name: str, size_bytes: int) -> int:
    """A descriptor of `size_bytes` zeros; `name` is what /proc shows. Raises ValueError for a size below 1."""
    if size_bytes < 1:
        raise ValueError(f"memory {name!r} must have at least 1 byte, got {size_bytes}")
    return _sealed(name, size_bytes)


def _sealed(name: str, size_bytes: int) -> int:
    fd = os.memfd_create(f"paceline-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def create_from(name: str, data: bytes | bytearray | memoryview) -> int:
    """A descriptor of a memory file that holds `data`."""
    view = memoryview(data).cast("B")
    fd = _sealed(name, len(view))
    try:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], done)
    except BaseException:
        os.close(fd)
        raise
    return fd


def size_of(fd: int) -> int:
    """The size in bytes of a memory file. Raises ProtocolError when it could still be truncated."""
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        sealed = False
    if not sealed:
        raise ProtocolError("a peer handed over a descriptor that is not a sealed memory file")
    return os.fstat(fd).st_size


def map_shared(fd: int, size_bytes: int | None = None) -> mmap.mmap:
    """The whole memory file, shared and writable; the descriptor stays the caller's.

    Raises ProtocolError when it is not a sealed memory file, or is smaller than the `size_bytes` that are needed.
    """
    size = size_of(fd)
    if size_bytes is not None and size < size_bytes:
        raise ProtocolError(f"a peer handed over {size} bytes of memory, {size_bytes} are needed")
    return mmap.mmap(fd, size)


def read_all(fd: int, *, at_most: int) -> bytes:
    """A copy of what a memory file holds. Raises ProtocolError when it has more than `at_most` bytes."""
    size = size_of(fd)
    if size > at_most:
        raise ProtocolError(f"a peer handed over {size} bytes, at most {at_most} are taken")
    parts: list[bytes] = []
    done = 0
    while done < size:
        part = os.pread(fd, size - done, done)
        if not part:
            raise ProtocolError(f"a memory file of {size} bytes ended after {done}")
        parts.append(part)
        done += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
