"""`paceline doctor` and `paceline calibrate` on two hosts of network namespaces, started as a launcher starts them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from launch import environment
from netns import CABLE, Host, namespaces
from paceline.engine.virtual.cluster_file import read_cluster
from paceline.transport.keys import write_key_file

pytestmark = pytest.mark.timeout(150)

SLOW_MBIT = 50
FAST, FAST_NET = "fast", "10.77.32.{}"
TIMEOUT_S = 100.0
PORT = 20_000


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

import paceline

run = paceline.init()
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model, opt, loader = run.prepare(model, opt, DataLoader(TensorDataset(torch.ones(256, 8)), batch_size=16))
for _ in run.epochs(1):
    for (x,) in loader:
        opt.zero_grad()
        model(x).mean().backward()
        opt.step()
"""


class Hosts(NamedTuple):
    """Two hosts with a slow cable, by which they find each other, and a fast one; and the job's key."""

    hosts: tuple[Host, ...]
    key: Path
    folder: Path

    def launch(self, *command: str, **own: dict[str, str]) -> list[tuple[int, str, str]]:
        """Start it on both, with environments of their own by `first` and `second`; exit codes, and what was printed."""
        shared = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": self.hosts[0].address, "MASTER_PORT": str(PORT)}
        processes = [
            host.popen(
                [sys.executable, "-m", "paceline", *command],
                environment(**{**shared, "RANK": str(rank), "PACELINE_KEY_FILE": str(self.key), **own.get(name, {})}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.folder,
            )
            for rank, (host, name) in enumerate(zip(self.hosts, ("first", "second"), strict=True))
        ]
        try:
            printed = [process.communicate(timeout=TIMEOUT_S) for process in processes]
            return [(process.returncode, *texts) for process, texts in zip(processes, printed, strict=True)]
        finally:
            for process in processes:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("hosts")
    write_key_file(folder / "job.key")
    with namespaces(2, rate=f"{SLOW_MBIT}mbit") as made:
        first, second = made
        first.ip("link", "add", FAST, "type", "veth", "peer", "name", FAST, "netns", second.name)
        for number, host in enumerate(made, 1):
            host.ip("addr", "add", f"{FAST_NET.format(number)}/24", "dev", FAST)
            host.ip("link", "set", FAST, "up")
        yield Hosts(made, folder / "job.key", folder)


def test_the_fast_interface_is_named_for_all_hosts(hosts: Hosts) -> None:
    (code, out, _), (other_code, _, _) = hosts.launch("doctor", "--json")
    assert (code, other_code) == (0, 0), out
    report = json.loads(out)
    ways = [way for visit in report["visits"] for way in visit["ways"]]
    slow = [way["bytes_per_s"] for way in ways if way["interface"] == CABLE]
    fast = [way["bytes_per_s"] for way in ways if way["interface"] == FAST]
    assert len(slow) == len(fast) == 2
    assert [8e-6 * rate for rate in slow] == pytest.approx([SLOW_MBIT] * 2, rel=0.35)
    (told,) = [one["sentence"] for one in report["advice"] if one["gravity"] == "slow"]
    assert told.startswith("fast is the faster interface of every host: ")
    assert told.endswith("Set PACELINE_HOST=fast on all of them")


def test_an_address_that_is_cut_off_fails_and_another_one_is_offered(hosts: Hosts) -> None:
    wish = {"PACELINE_HOST": FAST}
    second = hosts.hosts[1]
    second.ip("route", "add", "blackhole", FAST_NET.format(1))
    try:
        (code, out, _), (other_code, _, error) = hosts.launch("doctor", first=wish, second=wish)
    finally:
        second.ip("route", "del", "blackhole", FAST_NET.format(1))
    assert (code, other_code) == (1, 1)
    one, other = (f"{socket.gethostname()} (rank {rank})" for rank in range(2))
    assert f"fails: {one} does not reach {other} at {FAST_NET.format(2)}, where a job would look for it (no answer within 3 s): " in out
    assert f"set PACELINE_HOST={second.address} on {other}, which is reached" in out
    assert "a job will not run well before that is mended" in out
    assert "something will not work, rank 0 has printed what" in error


@pytest.mark.slow
def test_calibrate_writes_the_hosts_and_the_network_between_them(hosts: Hosts) -> None:
    times = hosts.folder / "times.py"
    times.write_text(SCRIPT)
    (code, out, error), (other_code, _, _) = hosts.launch("calibrate", "--out", "cluster.toml", "--script", str(times))
    assert (code, other_code) == (0, 0), error
    assert "Measured: 2 hosts with 2 workers." in out
    cluster = read_cluster(str(hosts.folder / "cluster.toml")).cluster
    assert cluster.network.bandwidth * 8e-6 == pytest.approx(SLOW_MBIT, rel=0.35)
    assert sum(group.count or 0 for group in cluster.workers) == 2
    assert all(1e-6 < group.compute < 0.1 for group in cluster.workers)
    assert cluster.servers.hosts == "with workers"


def test_calibrate_says_on_every_host_that_its_file_is_there_already_before_it_measures(hosts: Hosts) -> None:
    (hosts.folder / "there.toml").write_text("")
    (code, out, error), (other_code, _, other_error) = hosts.launch("calibrate", "--out", "there.toml", "--script", "never-timed.py")
    assert (code, other_code) == (2, 2), (error, other_error)
    told = "--out: there.toml is there already, name a file that is not"
    assert error.splitlines()[-1] == f"paceline: {told}"
    assert other_error.splitlines()[-1] == f"paceline: rank 0 on {socket.gethostname()}: {told}"
    assert "measuring" not in error + other_error
    assert out == (hosts.folder / "there.toml").read_text() == ""
