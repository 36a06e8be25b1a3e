"""`sync` gives the parameters of one process on the joined batch, and of DDP, for each optimizer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launch import SCRIPTS, environment, paceline_run, run_ranks

OPTIMIZERS = ["sgd", "adam", "adamw", "adadelta", "adagrad", "rmsprop"]
TOLERANCE = 1e-5


def distance(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest relative 2-norm of a difference over all tensors."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name].double() - theirs[name].double()).norm() / theirs[name].double().norm()) for name in ours)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders with one process's parameters, by model."""
    folders: dict[str, Path] = {}
    for model in ("mlp", "cnn"):
        folders[model] = tmp_path_factory.mktemp(f"plain-{model}")
        command = [sys.executable, str(SCRIPTS / "parity_plain.py"), model, str(folders[model]), *OPTIMIZERS]
        subprocess.run(command, check=True, timeout=120, env=environment())
    return folders


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_sync_equals_one_process_on_the_joined_batch(num_workers: int, optimizer: str, plain: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    servers = {1: 1, 2: 2, 4: 3}[num_workers]
    done = paceline_run(
        SCRIPTS / "parity_run.py", "mlp", optimizer, out=out, workers=num_workers, servers=servers, pace="sync", leases="static"
    )
    assert done.returncode == 0, done.stderr
    assert distance(load_file(out / "final.safetensors"), load_file(plain["mlp"] / f"{optimizer}.safetensors")) < TOLERANCE


@pytest.mark.parametrize("num_workers", [2, 4])
def test_sync_equals_ddp(num_workers: int, plain: dict[str, Path], tmp_path: Path) -> None:
    ddp = tmp_path / "ddp"
    ddp.mkdir()
    run_ranks(SCRIPTS / "parity_ddp.py", "mlp", str(ddp), *OPTIMIZERS, num_ranks=num_workers)
    for optimizer in OPTIMIZERS:
        assert distance(load_file(ddp / f"{optimizer}.safetensors"), load_file(plain["mlp"] / f"{optimizer}.safetensors")) < TOLERANCE
    out = tmp_path / "run"
    done = paceline_run(SCRIPTS / "parity_run.py", "mlp", "adamw", out=out, workers=num_workers, pace="sync", leases="static")
    assert done.returncode == 0, done.stderr
    assert distance(load_file(out / "final.safetensors"), load_file(ddp / "adamw.safetensors")) < TOLERANCE


def test_a_cnn_is_no_further_from_one_process_than_twice_ddps_own_distance(plain: dict[str, Path], tmp_path: Path) -> None:
    ddp = tmp_path / "ddp"
    ddp.mkdir()
    run_ranks(SCRIPTS / "parity_ddp.py", "cnn", str(ddp), "adamw", "sgd", num_ranks=2)
    for optimizer in ("adamw", "sgd"):
        one = load_file(plain["cnn"] / f"{optimizer}.safetensors")
        out = tmp_path / f"run-{optimizer}"
        done = paceline_run(SCRIPTS / "parity_run.py", "cnn", optimizer, out=out, workers=2, pace="sync", leases="static")
        assert done.returncode == 0, done.stderr
        bound = max(2 * distance(load_file(ddp / f"{optimizer}.safetensors"), one), 1e-7)
        assert distance(load_file(out / "final.safetensors"), one) <= bound
