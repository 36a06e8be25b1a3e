"""Two hosts with a slow link: a sync step takes what the link needs for its bytes, and no longer than DDP's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from launch import SCRIPTS, environment, free_port
from netns import Host, namespaces
from paceline.transport.keys import write_key_file

RATE_MBIT = 100
NUM_STEPS = 10
NUM_ROUNDS = 3


def step_of(kind: str, hosts: tuple[Host, ...], folder: Path, number: int) -> tuple[float, int, str]:
    """The median milliseconds of a step, the model's bytes, and what the second host printed."""
    port = str(free_port())
    outputs = [folder / f"{kind}-{number}-{rank}.txt" for rank in range(len(hosts))]
    ranks = [
        host.popen(
            [sys.executable, str(SCRIPTS / "linked.py"), kind, str(NUM_STEPS)],
            env=environment(
                RANK=str(rank),
                LOCAL_RANK="0",
                WORLD_SIZE=str(len(hosts)),
                MASTER_ADDR=hosts[0].address,
                MASTER_PORT=port,
                GLOO_SOCKET_IFNAME="cable",
                **(
                    {
                        "PACELINE_PACE": "sync",
                        "PACELINE_LEASES": "static",
                        "PACELINE_KEY_FILE": str(folder / "key"),
                        "PACELINE_OUT": str(folder / f"run-{number}"),
                    }
                    if kind == "ours"
                    else {}
                ),
            ),
            stdout=outputs[rank].open("w"),
            stderr=subprocess.STDOUT,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        codes = [process.wait(150.0) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    printed = [path.read_text() for path in outputs]
    assert codes == [0, 0], "\n".join(printed)
    line = next(line for line in printed[0].splitlines() if line.startswith("median"))
    return float(line.split()[1]), int(line.split()[2]), printed[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sync_step_takes_what_the_link_needs_and_no_longer_than_ddp(tmp_path: Path) -> None:
    write_key_file(tmp_path / "key")
    ours: list[float] = []
    ddp: list[float] = []
    size_bytes = 0
    with namespaces(rate=f"{RATE_MBIT}mbit") as hosts:
        for number in range(NUM_ROUNDS):
            ms, size_bytes, printed = step_of("ours", hosts, tmp_path, number)
            ours.append(ms)
            # one kernel, so the processes might have shared memory; what is elsewhere in the network is told apart, once
            assert printed.count("no memory is shared with a process of this machine, it is reached over TCP") == 1
            ddp.append(step_of("ddp", hosts, tmp_path, number)[0])
    # each host sends half of its gradient and half of the parameters: as many bytes as in a ring all-reduce of two
    floor_ms = size_bytes * 8 / RATE_MBIT / 1e3
    print(f"floor {floor_ms:.0f} ms, ours {ours}, DDP {ddp}")
    assert median(ours) < 1.1 * floor_ms
    assert median(ours) <= 1.02 * median(ddp)
