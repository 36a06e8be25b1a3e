"""`sync` gives the parameters of one process on the joined batch, and of DDP, for each optimizer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launch import SCRIPTS, environment, events, paceline_run, run_ranks
from netns import namespaces
from paceline.trace.record import read_summary
from paceline.transport.keys import write_key_file
from ranks import torchrun_on

OPTIMIZERS = ["sgd", "adam", "adamw", "adadelta", "adagrad", "rmsprop"]
OF_CNN = ["adamw", "sgd"]
TOLERANCE = 1e-5
QUICK = {("sgd", 1), ("adam", 2), ("adamw", 4), ("adadelta", 2), ("adagrad", 2), ("rmsprop", 2)}
"""Each optimizer with one number of workers; the whole grid is `make test-slow`."""
GRID = [
    pytest.param(optimizer, number, marks=() if (optimizer, number) in QUICK else pytest.mark.slow)
    for optimizer in OPTIMIZERS
    for number in (1, 2, 4)
]


def distance(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest relative 2-norm of a difference over all tensors."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name].double() - theirs[name].double()).norm() / theirs[name].double().norm()) for name in ours)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder with one process's parameters of a model, by optimizer."""

    @cache
    def train(model: str) -> Path:
        folder = tmp_path_factory.mktemp(f"plain-{model}")
        command = [sys.executable, str(SCRIPTS / "parity_plain.py"), model, str(folder), *(OPTIMIZERS if model == "mlp" else OF_CNN)]
        subprocess.run(command, check=True, timeout=120, env=environment())
        return folder

    return train


GROUPS = [(num_workers, optimizer) for num_workers in (1, 2, 4) for optimizer in OPTIMIZERS]


@pytest.mark.parametrize(
    ("num_workers", "optimizer"),
    [pytest.param(*group, marks=() if group in [(2, "sgd"), (2, "adamw"), (4, "adam")] else pytest.mark.slow) for group in GROUPS],
)
def test_sync_in_a_group_of_workers_equals_one_process(
    num_workers: int, optimizer: str, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    given: dict[str, object] = {"workers": num_workers, "pace": "sync", "leases": "static", "route": "collective"}
    done = paceline_run(SCRIPTS / "parity_run.py", "mlp", optimizer, out=out, **given)
    assert done.returncode == 0, done.stderr
    assert distance(load_file(out / "final.safetensors"), load_file(plain("mlp") / f"{optimizer}.safetensors")) < TOLERANCE
    routes = [(event["route"], event["version"]) for event in events(out) if event["event"] == "route"]
    assert routes == [("collective", 0), ("servers", 20)]


@pytest.mark.parametrize(("optimizer", "num_workers"), GRID)
def test_sync_equals_one_process_on_the_joined_batch(
    num_workers: int, optimizer: str, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    servers = {1: 1, 2: 2, 4: 3}[num_workers]
    done = paceline_run(
        SCRIPTS / "parity_run.py", "mlp", optimizer, out=out, workers=num_workers, servers=servers, pace="sync", leases="static"
    )
    assert done.returncode == 0, done.stderr
    assert distance(load_file(out / "final.safetensors"), load_file(plain("mlp") / f"{optimizer}.safetensors")) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_under_torchrun_with_two_processes_on_each_of_two_hosts_sync_equals_one_process(
    optimizer: str, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    key, out = tmp_path / "job.key", tmp_path / "run"
    write_key_file(key)
    told = {"PACELINE_OUT": str(out), "PACELINE_PACE": "sync", "PACELINE_LEASES": "static", "PACELINE_SERVERS": "2"}
    with namespaces() as hosts:
        script = SCRIPTS / "parity_run.py"
        assert torchrun_on(hosts, script, "mlp", optimizer, on_each=2, **told, PACELINE_KEY_FILE=str(key)) == [0, 0]
    assert read_summary(out)["workers"] == 4
    assert distance(load_file(out / "final.safetensors"), load_file(plain("mlp") / f"{optimizer}.safetensors")) < TOLERANCE


@pytest.mark.parametrize("num_workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_sync_equals_ddp(num_workers: int, plain: Callable[[str], Path], tmp_path: Path) -> None:
    ddp = tmp_path / "ddp"
    ddp.mkdir()
    run_ranks(SCRIPTS / "parity_ddp.py", "mlp", str(ddp), *OPTIMIZERS, num_ranks=num_workers)
    for optimizer in OPTIMIZERS:
        assert distance(load_file(ddp / f"{optimizer}.safetensors"), load_file(plain("mlp") / f"{optimizer}.safetensors")) < TOLERANCE
    out = tmp_path / "run"
    done = paceline_run(SCRIPTS / "parity_run.py", "mlp", "adamw", out=out, workers=num_workers, pace="sync", leases="static")
    assert done.returncode == 0, done.stderr
    assert distance(load_file(out / "final.safetensors"), load_file(ddp / "adamw.safetensors")) < TOLERANCE


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_a_cnn_is_no_further_from_one_process_than_twice_ddps_own_distance(
    optimizer: str, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    ddp, out = tmp_path / "ddp", tmp_path / "run"
    ddp.mkdir()
    run_ranks(SCRIPTS / "parity_ddp.py", "cnn", str(ddp), optimizer, num_ranks=2)
    one = load_file(plain("cnn") / f"{optimizer}.safetensors")
    done = paceline_run(SCRIPTS / "parity_run.py", "cnn", optimizer, out=out, workers=2, pace="sync", leases="static")
    assert done.returncode == 0, done.stderr
    bound = max(2 * distance(load_file(ddp / f"{optimizer}.safetensors"), one), 1e-7)
    assert distance(load_file(out / "final.safetensors"), one) <= bound
