"""Push, apply (SGD) and pull of 100 MB over plain sockets: a part in each connection, received into place. Arguments: none|tls, steps."""

import os
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep

import torch

from paceline.engine.remote.width import WIDE as LANES
from paceline.transport.keys import MEMBER_NAME, read_key_file
from workload import report, timed

NUMBERS = 25_000_000
PATIENCE_S = 60.0
ADDRESS = ("127.0.0.1", int(os.environ["MASTER_PORT"]))


def context(*, server_side: bool) -> ssl.SSLContext | None:
    """The same TLS settings as ours."""
    if sys.argv[1] != "tls":
        return None
    return read_key_file(Path(os.environ["BENCH_KEY"])).tls(server_side=server_side)


def connected(sock: socket.socket, tls: ssl.SSLContext | None, *, server_side: bool) -> socket.socket:
    """A connection that is ready for data."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return sock
    return tls.wrap_socket(sock, server_side=server_side, server_hostname=None if server_side else MEMBER_NAME)


def receive(sock: socket.socket, view: memoryview) -> None:
    """Fill a view."""
    done, flags = 0, 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL
    while done < len(view):
        size = sock.recv_into(view[done:], 0, flags)
        if not size:
            raise EOFError
        done += size


def parts_of(numbers: torch.Tensor) -> list[memoryview]:
    """What each connection carries."""
    data = memoryview(numbers.numpy()).cast("B")
    size = len(data) // LANES
    return [data[at : at + size] for at in range(0, len(data), size)]


def serve() -> None:
    """Receive a gradient, apply it, send the parameters, until the worker is gone."""
    tls = context(server_side=True)
    parameter, gradient = torch.zeros(NUMBERS), torch.zeros(NUMBERS)
    with socket.create_server(ADDRESS) as listener, ThreadPoolExecutor(LANES) as threads:
        socks = [connected(listener.accept()[0], tls, server_side=True) for _ in range(LANES)]
        try:
            while True:
                list(threads.map(receive, socks, parts_of(gradient)))
                parameter.add_(gradient, alpha=-0.01)
                list(threads.map(lambda sock, part: sock.sendall(part), socks, parts_of(parameter)))
        except (EOFError, ConnectionResetError):
            return


def connect() -> socket.socket:
    """A connection to the server, which may still be starting."""
    tls, deadline_s = context(server_side=False), monotonic() + PATIENCE_S
    while True:
        try:
            return connected(socket.create_connection(ADDRESS), tls, server_side=False)
        except ConnectionRefusedError:
            if monotonic() > deadline_s:
                raise
            sleep(0.05)


def main() -> None:
    torch.set_num_threads(1)
    if os.environ["RANK"] == "1":
        serve()
        return
    socks = [connect() for _ in range(LANES)]
    gradient, parameter = torch.full((NUMBERS,), 1e-3), torch.zeros(NUMBERS)
    with ThreadPoolExecutor(LANES) as threads:

        def step() -> None:
            list(threads.map(lambda sock, part: sock.sendall(part), socks, parts_of(gradient)))
            list(threads.map(receive, socks, parts_of(parameter)))

        report(timed(step, int(sys.argv[2])))
    for sock in socks:
        sock.close()


main()
