"""Two hosts of our own, made of network namespaces: the wire off loopback, a slow link, and a cable that is cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

import pytest

from paceline.transport.keys import write_key_file

SERVER_HOST, WORKER_HOST = "10.77.31.1", "10.77.31.2"
SIZE = 6 << 20

ONE_END = f"""
import sys
from pathlib import Path
from time import monotonic
from paceline.errors import PeerLostError
from paceline.messages import Address, Begin
from paceline.transport.dial import Endpoint
from paceline.transport.keys import read_key_file
from paceline.transport.piece import Spec
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import trust_for
role, key, port = sys.argv[1:]
server, worker = Address("server", 1), Address("worker", 3)
mine, other = (server, worker) if role == "server" else (worker, server)
trust = trust_for("{SERVER_HOST}", read_key_file(Path(key)))
tcp = TcpPort(mine, trust, silence_s=1.0)
spec, data = Spec("uint8", ({SIZE},)), bytes([7]) * {SIZE}
if role == "server":
    print(trust.wire.name, tcp.listen("{SERVER_HOST}", 0, {{worker}}).port, flush=True)
    assert tcp.receive(30.0).message == Begin(0)
    place = bytearray({SIZE})
    arrival = tcp.expect(worker, 0, spec, memoryview(place))
    tcp.send(worker, Begin(1))
    arrival.wait(30.0)
    print("whole" if place == data else "spoilt", flush=True)
else:
    tcp.connect(server, Endpoint("{SERVER_HOST}", int(port)), lanes=1)
    tcp.send(server, Begin(0))
    assert tcp.receive(30.0).message == Begin(1)
    began_s = monotonic()
    tcp.start(server, 0, spec, memoryview(data)).wait(30.0)
    print(monotonic() - began_s, flush=True)
# nothing of this comes: the wait ends with the cable
arrival = tcp.expect(other, 1, spec, memoryview(bytearray({SIZE})))
print("waits", flush=True)
began_s = monotonic()
try:
    arrival.wait(30.0)
except PeerLostError as error:
    print(monotonic() - began_s, error, sep="|", flush=True)
delivery = tcp.receive(10.0)
print(delivery.sender, delivery.message, sep="|", flush=True)
tcp.close(flush_s=0.0)
"""


class Hosts(NamedTuple):
    """The names of two namespaces that a cable joins."""

    server: str
    worker: str


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=10.0, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("needs root, ip and tc to make two hosts of network namespaces")
    name = f"pl{token_hex(3)}"
    made = Hosts(f"{name}s", f"{name}w")
    try:
        for host in made:
            ip("netns", "add", host)
        ip("link", "add", "cable", "netns", made.server, "type", "veth", "peer", "name", "cable", "netns", made.worker)
        for host, address in zip(made, (SERVER_HOST, WORKER_HOST), strict=True):
            ip("-n", host, "addr", "add", f"{address}/24", "dev", "cable")
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "link", "set", "cable", "up")
        yield made
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host], check=False, timeout=10.0, capture_output=True)


def start(host: str, *arguments: str) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", host, sys.executable, "-c", ONE_END, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("rate_mbit", [None, 100], ids=["cable", "100-mbit"])
@pytest.mark.timeout(60)
def test_two_hosts_speak_tls_and_notice_a_cut_cable(hosts: Hosts, tmp_path: Path, rate_mbit: int | None) -> None:
    key = tmp_path / "job.key"
    write_key_file(key)
    if rate_mbit is not None:
        shape = ["tc", "qdisc", "add", "dev", "cable", "root", "tbf", "rate", f"{rate_mbit}mbit", "burst", "64kb", "latency", "50ms"]
        subprocess.run(["ip", "netns", "exec", hosts.worker, *shape], check=True, timeout=10.0, capture_output=True)
    server = start(hosts.server, "server", str(key), "0")
    worker: subprocess.Popen[str] | None = None
    try:
        wire, port = line(server).split()
        assert wire == "TLS"
        worker = start(hosts.worker, "worker", str(key), port)
        took_s = float(line(worker))
        assert line(server) == "whole"
        if rate_mbit is not None:
            floor_s = SIZE * 8 / rate_mbit / 1e6
            assert floor_s * 0.9 < took_s < floor_s * 1.25
        assert (line(server), line(worker)) == ("waits", "waits")
        ip("-n", hosts.server, "link", "set", "cable", "down")
        for process, other in ((server, "worker 3"), (worker, "server 1")):
            told_s, told = line(process).split("|")
            assert told == f"tensor 1 will not come from {other}: nothing was heard of it for 1 s"
            assert float(told_s) < 5.0
            assert line(process) == f"{other}|None"
            assert process.wait(10.0) == 0
    finally:
        for process in (server, worker):
            if process is not None:
                process.kill()
                process.wait(10.0)
