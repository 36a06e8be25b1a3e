"""What this machine can move: through its memory, through sockets within it, and how long an answer takes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from time import perf_counter

import msgspec

from paceline.engine.surroundings import num_cores
from paceline.errors import ConfigError
from paceline.plan.speed import PATIENCE_S, ask, receive, reply, send

COPY_BYTES = 64 * 2**20
NUM_COPIES = 5
NUM_PINGS = 300
NUM_STREAMS = 3
STREAM_S = 0.05


class Machine(msgspec.Struct, frozen=True):
    """Bytes a second of one copy and of one connection; `answer_s` is a round trip of 8 bytes between two threads."""

    cores: int
    memory_bytes_per_s: float
    unix_bytes_per_s: float
    tcp_bytes_per_s: float
    unix_answer_s: float
    tcp_answer_s: float


def measure_machine() -> Machine:
    """Measure for a second or two. Raises ConfigError when this machine has no loopback."""
    unix, tcp = unix_pair, tcp_pair
    try:
        return Machine(
            cores=num_cores(),
            memory_bytes_per_s=_copying(),
            unix_bytes_per_s=_streaming(unix),
            tcp_bytes_per_s=_streaming(tcp),
            unix_answer_s=_answering(unix),
            tcp_answer_s=_answering(tcp),
        )
    except OSError as error:
        raise ConfigError(f"{socket.gethostname()} cannot be measured: {error.strerror or error}") from error


Pair = tuple[socket.socket, socket.socket]


def unix_pair() -> Pair:
    """Two ends of a connection within the machine."""
    return _patient(socket.socketpair())


def tcp_pair() -> Pair:
    """The same over loopback, by IPv6 where there is nothing else."""
    with _loopback_server() as server:
        server.settimeout(PATIENCE_S)
        one = socket.create_connection(server.getsockname()[:2], timeout=PATIENCE_S)
        other, _ = server.accept()
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _patient((one, other))


def _loopback_server() -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", 0))
    except OSError:
        return socket.create_server(("::1", 0), family=socket.AF_INET6)


def _patient(pair: Pair) -> Pair:
    for end in pair:
        end.settimeout(PATIENCE_S)
    return pair


def _copying() -> float:
    """Of a tensor too large for the caches."""
    import torch

    source, target = (torch.ones(COPY_BYTES // 4) for _ in range(2))
    times_s: list[float] = []
    for _ in range(NUM_COPIES):
        begun_s = perf_counter()
        target.copy_(source)
        times_s.append(perf_counter() - begun_s)
    return COPY_BYTES / median(times_s)


def _streaming(pair: Callable[[], Pair]) -> float:
    # other load makes a single one too slow, never too fast
    return max(_together(pair, send, lambda end: receive(end, STREAM_S)) for _ in range(NUM_STREAMS))


def _answering(pair: Callable[[], Pair]) -> float:
    return _together(pair, lambda end: ask(end, num_pings=NUM_PINGS).round_trip_s, reply)


def _together(pair: Callable[[], Pair], mine: Callable[[socket.socket], float], theirs: Callable[[socket.socket], None]) -> float:
    """What one end has measured, while the other one is in a thread."""
    one, other = pair()
    with other:
        thread = threading.Thread(target=_quietly, args=(theirs, other), name="paceline-measured", daemon=True)
        thread.start()
        with one:
            found = mine(one)
        thread.join(PATIENCE_S)
        return found


def _quietly(theirs: Callable[[socket.socket], None], end: socket.socket) -> None:
    with suppress(OSError):
        # who measures has seen enough and is gone
        theirs(end)
