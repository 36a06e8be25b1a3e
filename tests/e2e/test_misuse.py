"""Scripts that cannot work, and those that nearly cannot: a clear sentence, the right exit code, in time."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from launch import paceline_run

LOOP = """
import torch, paceline
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
run = paceline.init()
width, num_samples, batch_size = {width}, {num_samples}, {batch_size}
model = torch.nn.Linear(width, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.ones(num_samples, width)), batch_size=batch_size)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs({epochs}):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        {backward}
        optimizer.step()
        run.log(loss=loss.detach())
"""


def script(folder: Path, **parts: object) -> Path:
    """LOOP with some of its parts replaced."""
    defaults = {"width": 3, "num_samples": 64, "batch_size": 4, "epochs": 1, "backward": "loss.backward()"}
    path = folder / "train.py"
    path.write_text(LOOP.format(**{**defaults, **parts}))
    return path


def run_quickly(path: Path, out: Path, **options: object) -> subprocess.CompletedProcess[str]:
    """The run must end by itself, fault to exit within 10 seconds plus the start of its processes."""
    start = time.monotonic()
    done = paceline_run(path, out=out, **{"workers": 2, "servers": 1, **options})
    assert time.monotonic() - start < 40
    assert json.loads((out / "summary.json").read_text())["exit"] == done.returncode
    return done


def test_a_device_that_servers_do_not_have_is_refused_with_a_sentence(tmp_path: Path) -> None:
    done = run_quickly(script(tmp_path), tmp_path / "run", server_device="xpu:99")
    assert done.returncode == 2
    assert "server 0: --server-device xpu:99 is not on this machine; allowed here: cpu" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_step_without_gradients_is_refused_with_a_sentence(tmp_path: Path) -> None:
    done = run_quickly(script(tmp_path, backward="pass"), tmp_path / "run")
    assert done.returncode == 1
    assert "without a gradient" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_different_models_are_named_with_what_differs(tmp_path: Path) -> None:
    done = run_quickly(script(tmp_path, width="3 + run.worker"), tmp_path / "run")
    assert done.returncode == 1
    assert "worker 1's model is not that of worker 0" in done.stderr
    assert "weight" in done.stderr


def test_ten_gradients_in_a_row_that_are_not_finite_end_the_run(tmp_path: Path) -> None:
    done = run_quickly(script(tmp_path, backward="(loss * float('nan')).backward()"), tmp_path / "run", pace="async")
    assert done.returncode == 1
    assert "10 gradients in a row that were not finite" in done.stderr
    refusals = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines() if '"refuse"' in line]
    assert len(refusals) >= 10
    assert {event["reason"] for event in refusals} == {"not finite"}


@pytest.mark.slow  # by the roles alone: tests/roles/test_members.py
def test_one_bad_batch_is_skipped_counted_and_named(tmp_path: Path) -> None:
    path = script(tmp_path, backward="(loss * (float('nan') if 7.0 in x else 1.0)).backward()")
    path.write_text(
        path.read_text().replace("torch.ones(num_samples, width)", "torch.arange(num_samples).float()[:, None].repeat(1, width)")
    )
    done = run_quickly(path, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ledger"] == {"once": 60, "repeated": 0, "skipped": 4, "undone": 0}
    assert "not finite: skipped" in done.stderr + done.stdout


def test_more_workers_than_samples_is_fine(tmp_path: Path) -> None:
    done = run_quickly(script(tmp_path, num_samples=2, batch_size=1, epochs=2), tmp_path / "run", workers=3)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ledger"]["once"] == 4


def test_zero_samples_is_refused_with_a_sentence(tmp_path: Path) -> None:
    done = run_quickly(script(tmp_path, num_samples=0), tmp_path / "run")
    assert done.returncode == 1
    assert "no samples" in done.stderr


@pytest.mark.parametrize("other", [44, pytest.param(84, marks=pytest.mark.slow)])
def test_datasets_of_different_sizes_are_named(tmp_path: Path, other: int) -> None:
    done = run_quickly(script(tmp_path, num_samples=f"(64, {other})[run.worker]"), tmp_path / "run", leases="static")
    assert done.returncode == 1
    named = re.search(
        r"worker (\d) prepared a dataset of (\d+) samples, worker (\d), which drew the epoch's order, one of (\d+);", done.stderr
    )
    assert named
    assert {(named[1], named[2]), (named[3], named[4])} == {("0", "64"), ("1", str(other))}
    assert "Traceback" not in done.stderr


@pytest.mark.slow  # by the session alone: tests/session/test_session_joined.py
def test_a_worker_that_writes_a_parameter_is_told_which(tmp_path: Path) -> None:
    done = run_quickly(script(tmp_path, backward="loss.backward(); model.weight.data = model.weight.data + 1"), tmp_path / "run")
    assert done.returncode == 1
    assert "weight" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pace_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """As a program; what else is refused, and how, is in tests/test_cli.py."""
    done = paceline_run(script(tmp_path), out=tmp_path / "run", workers=2, pace="ksync:3")
    assert (done.returncode, done.stdout) == (2, "")
    told = "paceline: --pace: pace 'ksync:3' needs 3 different workers for an update, with 2 it must be 1 to 2\n"
    assert done.stderr == told
    assert not (tmp_path / "run").exists()
