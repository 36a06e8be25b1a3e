"""Each launcher's own variables alone start a run; a process that a launcher starts again alone comes back into it."""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import Callable, Mapping

import pytest

from launch import events, free_port
from paceline.engine.torchrun.launch import FIRST_PORT, NUM_PORTS
from paceline.trace.record import read_summary
from ranks import Ranks

Launched = Callable[..., Ranks]


def slurm(rank: int, job: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_NODELIST": "127.0.0.1",
    }


def free_job() -> int:
    """The number of a Slurm job whose store's port is free."""
    while True:
        job = random.randrange(NUM_PORTS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", FIRST_PORT + job)) != 0:
                return job


def started_by(launcher: str) -> list[Mapping[str, str]]:
    port, job = str(free_port()), free_job()
    if launcher == "Slurm":
        return [slurm(rank, job) for rank in range(2)]
    if launcher == "PET_*":
        shared = {"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
        return [{**shared, "PET_NODE_RANK": str(rank)} for rank in range(2)]
    shared = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**shared, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)} for rank in range(2)]


@pytest.mark.parametrize(
    ("launcher", "because"),
    [
        ("Slurm", "srun has set SLURM_PROCID, in step 0 of job"),
        pytest.param("PET_*", "PET_NNODES and PET_NODE_RANK are set", marks=pytest.mark.slow),
        pytest.param("Open MPI", "mpirun has set OMPI_COMM_WORLD_RANK", marks=pytest.mark.slow),
    ],
)
def test_a_launchers_own_variables_are_enough(launcher: str, because: str, launched: Launched) -> None:
    ranks = launched("plain", "0", size=2, on_each=2, variables=started_by(launcher))
    assert ranks.codes() == [0, 0], ranks.printed(0) + ranks.printed(1)
    assert read_summary(ranks.out)["ledger"] == {"once": 800, "repeated": 0, "skipped": 0, "undone": 0}
    for rank in range(2):
        assert f"engine torchrun, because {because}" in ranks.printed(rank)


@pytest.mark.slow
@pytest.mark.parametrize("pace", ["sync", "async"])
def test_a_worker_that_is_started_again_alone_comes_back_and_every_sample_counts_once(pace: str, launched: Launched) -> None:
    ranks = launched("plain", "0.5", size=2, on_each=2, pace=pace)
    ranks.wait_for_updates(2)
    ranks.processes[1].kill()
    assert ranks.codes(of=[1]) == [-signal.SIGKILL]
    ranks.restart(1)
    assert ranks.codes() == [0, 0], ranks.printed(0) + ranks.printed(1)
    summary = read_summary(ranks.out)
    assert summary["ledger"] == {"once": 800, "repeated": 0, "skipped": 0, "undone": 0}
    assert summary["lost"] == [1]
    joins = [event for event in events(ranks.out) if event["event"] == "join" and event["role"] == "worker" and event["id"] == 1]
    assert len(joins) == 2
