"""How fast a connection is: an end that asks and one that replies, an end that sends and one that receives.

The receiver says when it has seen enough, so a slow connection takes no longer than a fast one. Any stream socket will do.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from paceline.errors import DeadlineError

PIECE_BYTES = 2**20
WARM_S = 0.02
"""Until a connection is up to speed, and its first buffers are full."""
PATIENCE_S = 20.0
LEAST_PINGS, LEAST_READS, PATIENT = 3, 16, 10

_CLOCK = struct.Struct("<d")
_PING = bytes(_CLOCK.size)

Clock = Callable[[], float]


class Answer(NamedTuple):
    """A round trip of 8 bytes (the median), and how far the other clock is ahead of ours, by the quickest one."""

    round_trip_s: float
    ahead_s: float
    ahead_error_s: float


def ask(end: socket.socket, *, num_pings: int, limit_s: float = PATIENCE_S, clock: Clock = time.time) -> Answer:
    """Ask who replies at the other end, up to `num_pings` times within `limit_s`. Raises OSError and DeadlineError."""
    trips: list[tuple[float, float]] = []
    begun_s = perf_counter()
    while len(trips) < num_pings and (len(trips) < LEAST_PINGS or perf_counter() - begun_s < limit_s):
        left_s, asked_s = clock(), perf_counter()
        end.sendall(_PING)
        theirs_s = _CLOCK.unpack(take(end, _CLOCK.size))[0]
        took_s = perf_counter() - asked_s
        trips.append((took_s, theirs_s - (left_s + took_s / 2)))
    trips.sort()
    quickest_s, ahead_s = trips[0]
    return Answer(trips[len(trips) // 2][0], ahead_s, quickest_s / 2)


def reply(end: socket.socket, *, clock: Clock = time.time) -> None:
    """Tell the time to who asks, until it closes the connection."""
    while True:
        try:
            take(end, len(_PING))
        except ConnectionError:
            return
        end.sendall(_CLOCK.pack(clock()))


def send(end: socket.socket) -> float:
    """Send zeros until the receiver says how many bytes a second came. Raises OSError and DeadlineError."""
    piece, poll = memoryview(bytes(PIECE_BYTES)), select.poll()
    poll.register(end.fileno(), select.POLLIN | select.POLLOUT)
    end.setblocking(False)
    deadline_s = perf_counter() + PATIENCE_S
    while perf_counter() < deadline_s:
        for _, events in poll.poll(1000.0 * PATIENCE_S):
            if events & ~select.POLLOUT:
                end.settimeout(PATIENCE_S)
                return _CLOCK.unpack(take(end, _CLOCK.size))[0]
            try:
                end.send(piece)
            except BlockingIOError:
                continue
    raise DeadlineError(f"the receiver of a measured connection said nothing for {PATIENCE_S:g} s")


def receive(end: socket.socket, span_s: float) -> None:
    """Receive for `span_s` once the connection is warm, say how fast that was, and read on until the sender has heard it."""
    buffer = bytearray(PIECE_BYTES)
    _warm(end, buffer)
    begun_s, size_bytes, num_reads = perf_counter(), 0, 0
    while True:
        size_bytes, num_reads = size_bytes + _read(end, buffer), num_reads + 1
        took_s = perf_counter() - begun_s
        # of few reads most of the time may be that of a pause in which this thread did not run
        if took_s >= span_s and (num_reads >= LEAST_READS or took_s >= PATIENT * span_s):
            break
    end.sendall(_CLOCK.pack(size_bytes / took_s))
    while end.recv_into(buffer):
        continue


def _warm(end: socket.socket, buffer: bytearray) -> None:
    _read(end, buffer)
    warm_s = perf_counter() + WARM_S
    while perf_counter() < warm_s:
        _read(end, buffer)


def _read(end: socket.socket, buffer: bytearray) -> int:
    return end.recv_into(buffer) or _closed()


def take(end: socket.socket, size_bytes: int) -> bytes:
    """Exactly so many bytes. Raises ConnectionError when fewer come."""
    taken = b""
    while len(taken) < size_bytes:
        data = end.recv(size_bytes - len(taken))
        if not data:
            _closed()
        taken += data
    return taken


def _closed() -> int:
    raise ConnectionError("the other end of a measured connection was closed")
