"""Which launcher started this process, as which of how many, and where the launcher's store is: read from the environment alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from paceline.errors import ConfigError

NO_MASTER = "MASTER_ADDR (the host of rank 0) and MASTER_PORT (a free port there) must be set for it"
FIRST_PORT, NUM_PORTS = 20_000, 10_000
"""Where a Slurm job's store is, from its number, when nobody says."""


class Launch(NamedTuple):
    """This process's place among those of a launcher.

    `because` tells what was found. `attempt` names this start of the group among others of the same job, which was started
    `restarts` times before. `has_store`: the launcher keeps the store at `address`, else rank 0 does. `is_one_host`: nobody
    is elsewhere.
    """

    launcher: str
    because: str
    rank: int
    world_size: int
    local_rank: int
    address: tuple[str, int]
    attempt: str = "0"
    restarts: int = 0
    has_store: bool = False
    is_one_host: bool = False


def find_launch(environ: Mapping[str, str]) -> Launch | None:
    """The first launcher that is found, in the order of `FINDERS`; None: nobody has launched this.

    >>> launch = find_launch({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"})
    >>> launch.launcher, launch.rank, launch.world_size, launch.address
    ('a launcher', 1, 4, ('a', 29500))
    """
    for find in FINDERS:
        launch = find(environ)
        if launch is not None:
            if not launch.rank < launch.world_size:
                raise ConfigError(f"{launch.because}, but rank {launch.rank} must be below the world's size {launch.world_size}")
            return launch
    return None


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "").strip()
    if not text and default is not None:
        return default
    if not re.fullmatch(r"[0-9]{1,7}", text):
        raise ConfigError(f"{name} is {text!r} in the environment, it must be a whole number")
    return int(text)


def _address(environ: Mapping[str, str], because: str, host: str = "", port: int | None = None, prefix: str = "") -> tuple[str, int]:
    host = environ.get(f"{prefix}MASTER_ADDR", "").strip() or host
    if not host or (port is None and not environ.get(f"{prefix}MASTER_PORT")):
        raise ConfigError(f"{because}, but {NO_MASTER}")
    return host, _number(environ, f"{prefix}MASTER_PORT", port)


def _by_rank(environ: Mapping[str, str]) -> Launch | None:
    """RANK and WORLD_SIZE: torchrun's contract, which many keep (Kubeflow, SageMaker, Spark)."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    is_torchrun = "TORCHELASTIC_RUN_ID" in environ
    launcher = "torchrun" if is_torchrun else "a launcher"
    because = f"{launcher} has set RANK and WORLD_SIZE"
    world_size = _number(environ, "WORLD_SIZE")
    return Launch(
        launcher,
        because,
        _number(environ, "RANK"),
        world_size,
        _number(environ, "LOCAL_RANK", 0),
        _address(environ, because),
        attempt=f"{environ.get('TORCHELASTIC_RUN_ID', '')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
        restarts=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
        has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        is_one_host=_number(environ, "LOCAL_WORLD_SIZE", 0) == world_size,
    )


def _by_pet(environ: Mapping[str, str]) -> Launch | None:
    """PET_*: torchrun's own arguments, given to a script that was started without it; one process a host."""
    if "PET_NNODES" not in environ or "PET_NODE_RANK" not in environ:
        return None
    because = "PET_NNODES and PET_NODE_RANK are set"
    if environ.get("PET_NPROC_PER_NODE", "1").strip() != "1":
        return None  # only torchrun itself starts several
    world_size = _number(environ, "PET_NNODES")
    address = _address(environ, because, prefix="PET_")
    return Launch("PET_*", because, _number(environ, "PET_NODE_RANK"), world_size, 0, address, is_one_host=world_size == 1)


def _by_slurm(environ: Mapping[str, str]) -> Launch | None:
    """The tasks of an `srun`; the batch script itself is a task of no step."""
    if "SLURM_PROCID" not in environ or not environ.get("SLURM_STEP_ID", "").strip().isdigit():
        return None
    because = f"srun has set SLURM_PROCID, in step {environ['SLURM_STEP_ID']} of job {environ.get('SLURM_JOB_ID', '')}"
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    port = FIRST_PORT + _number(environ, "SLURM_JOB_ID", 0) % NUM_PORTS
    return Launch(
        "Slurm",
        because,
        _number(environ, "SLURM_PROCID"),
        _number(environ, count),
        _number(environ, "SLURM_LOCALID", 0),
        _address(environ, because, first_host(nodes), port),
        attempt=f"{environ['SLURM_STEP_ID']}/{environ.get('SLURM_RESTART_COUNT', '0')}",
        restarts=_number(environ, "SLURM_RESTART_COUNT", 0),
        is_one_host=_number(environ, "SLURM_STEP_NUM_NODES", 0) == 1,
    )


def _by_open_mpi(environ: Mapping[str, str]) -> Launch | None:
    """The processes of an `mpirun`."""
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    because = "mpirun has set OMPI_COMM_WORLD_RANK"
    world_size = _number(environ, "OMPI_COMM_WORLD_SIZE")
    local_rank = _number(environ, "OMPI_COMM_WORLD_LOCAL_RANK", 0)
    is_one_host = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", 0) == world_size
    address = _address(environ, because)
    return Launch("Open MPI", because, _number(environ, "OMPI_COMM_WORLD_RANK"), world_size, local_rank, address, is_one_host=is_one_host)


FINDERS: tuple[Callable[[Mapping[str, str]], Launch | None], ...] = (_by_rank, _by_pet, _by_slurm, _by_open_mpi)


def first_host(nodes: str) -> str:
    """The first host of a Slurm list of nodes.

    >>> first_host("gpu[07-09,11],login"), first_host("a1,a2"), first_host("rack[1-2]n[3-4]")
    ('gpu07', 'a1', 'rack1n3')
    """
    end, depth = 0, 0
    while end < len(nodes) and (depth or nodes[end] != ","):
        depth += {"[": 1, "]": -1}.get(nodes[end], 0)
        end += 1
    return re.sub(r"\[([^-,\]]*)[^\]]*\]", r"\1", nodes[:end])
