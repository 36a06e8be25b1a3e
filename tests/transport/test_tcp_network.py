"""Two hosts of our own, made of network namespaces: the wire off loopback, a slow link, and a cable that is cut."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from netns import Host, namespaces
from paceline.transport.keys import write_key_file

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
role, key, host, port = sys.argv[1:]
server, worker = Address("server", 1), Address("worker", 3)
mine, other = (server, worker) if role == "server" else (worker, server)
trust = trust_for(host, read_key_file(Path(key)))
tcp = TcpPort(mine, trust, silence_s=1.0)
spec, data = Spec("uint8", ({SIZE},)), bytes([7]) * {SIZE}
if role == "server":
    print(trust.wire.name, tcp.listen(host, 0, {{worker}}).port, flush=True)
    assert tcp.receive(30.0).message == Begin(0)
    place = bytearray({SIZE})
    arrival = tcp.expect(worker, 0, spec, memoryview(place))
    tcp.send(worker, Begin(1))
    arrival.wait(30.0)
    print("whole" if place == data else "spoilt", flush=True)
else:
    tcp.connect(server, Endpoint(host, int(port)), lanes=1)
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


def start(host: Host, *arguments: str) -> subprocess.Popen[str]:
    return host.popen([sys.executable, "-c", ONE_END, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("rate_mbit", [None, 100], ids=["cable", "100-mbit"])
@pytest.mark.timeout(60)
def test_two_hosts_speak_tls_and_notice_a_cut_cable(tmp_path: Path, rate_mbit: int | None) -> None:
    key = tmp_path / "job.key"
    write_key_file(key)
    with namespaces(rate=None if rate_mbit is None else f"{rate_mbit}mbit") as (server_host, worker_host):
        server = start(server_host, "server", str(key), server_host.address, "0")
        wire, port = line(server).split()
        assert wire == "TLS"
        worker = start(worker_host, "worker", str(key), server_host.address, port)
        took_s = float(line(worker))
        assert line(server) == "whole"
        if rate_mbit is not None:
            floor_s = SIZE * 8 / rate_mbit / 1e6
            assert floor_s * 0.9 < took_s < floor_s * 1.25
        assert (line(server), line(worker)) == ("waits", "waits")
        server_host.cut()
        for process, other in ((server, "worker 3"), (worker, "server 1")):
            told_s, told = line(process).split("|")
            assert told == f"tensor 1 will not come from {other}: nothing was heard of it for 1 s"
            assert float(told_s) < 5.0
            assert line(process) == f"{other}|None"
            assert process.wait(10.0) == 0


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from netns import namespaces
with namespaces() as hosts:
    hosts[0].popen(["sleep", "60"], stdout=-3)
    print(*(host.name for host in hosts), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(30)
def test_hosts_that_a_killed_test_has_left_are_removed_by_the_next() -> None:
    tests = str(Path(__file__).parent.parent)
    left = subprocess.run(
        [sys.executable, "-c", KILLED, tests], stdout=subprocess.PIPE, text=True, timeout=20.0, check=False
    ).stdout.split()
    if not left:
        pytest.skip("network namespaces cannot be made here")
    assert all(Path("/run/netns", name).exists() for name in left)
    with namespaces() as hosts:
        assert not any(Path("/run/netns", name).exists() for name in left)
        mine = [host.name for host in hosts]
    assert not any(Path("/run/netns", name).exists() for name in mine)
