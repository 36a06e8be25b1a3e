"""A run of real processes that corrects stale gradients, played again in plain torch from the order that it recorded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from corrected import Plain
from launch import SCRIPTS, events, paceline_run
from paceline.pace import parse_pace

NUM_WORKERS = 3
TOLERANCE = 1e-5


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stale", SCRIPTS / "stale.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def enter(plain: Plain, pace: str) -> None:
    """Let a pace hold from here on."""
    correction = parse_pace(pace).correction
    plain.rule, plain.strength = correction.rule, correction.strength
    if parse_pace(pace).momentum == "zero":
        for state in plain.optimizer.state.values():
            state["momentum_buffer"].zero_()


def played_again(out: Path, correction: str, optimizer: str) -> tuple[list[Tensor], int]:
    """The parameters of the recorded order, and the largest staleness in it."""
    stale = script()
    model = stale.model_of()
    plain = Plain(correction, model, stale.OPTIMIZERS[optimizer](model.parameters()), NUM_WORKERS)
    history, most = [plain.values()], 0
    for row in events(out):
        if row["event"] == "pace":
            enter(plain, str(row["to"]))
        if row["event"] != "update":
            continue
        members: Any = row["members"]
        gradients: list[list[Tensor]] = []
        for member in members:
            most = max(most, member["staleness"])
            base = [one.clone().requires_grad_() for one in history[-1 - member["staleness"]]]
            plain.backup[member["worker"]] = [one.detach() for one in base]
            stale.loss_of(base, member["worker"], member["step"]).backward()
            gradients.append([one.grad for one in base if one.grad is not None])
        plain.update([member["worker"] for member in members], gradients)
        history.append(plain.values())
    return history[-1], most


@pytest.mark.parametrize(
    ("pace", "correction", "optimizer"),
    [
        ("async", "dc:0.5", "sgd"),
        pytest.param("async", "dca:0.2", "adam", marks=pytest.mark.slow),
        pytest.param("async", "gap:1", "adam", marks=pytest.mark.slow),
        pytest.param("async", "bound:0.05", "sgd", marks=pytest.mark.slow),
        pytest.param("kasync:2", "gap:1", "sgd", marks=pytest.mark.slow),
        ("kasync:2", "bound:0.05", "adam"),
    ],
)
def test_a_run_is_what_plain_torch_makes_of_its_order(pace: str, correction: str, optimizer: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    whole = f"{pace},weighting=none,lr_rule=none,correction={correction}"
    done = paceline_run(SCRIPTS / "stale.py", optimizer, out=out, workers=NUM_WORKERS, servers=1, pace=whole)
    assert done.returncode == 0, done.stderr
    expected, most = played_again(out, correction, optimizer)
    assert most > 0
    ours = load_file(out / "final.safetensors")
    for index, value in enumerate(expected):
        assert float((ours[str(index)] - value).norm() / value.norm()) < TOLERANCE
    uncorrected, _ = played_again(out, "none", optimizer)
    assert float((uncorrected[0] - expected[0]).norm() / expected[0].norm()) > 100 * TOLERANCE


def test_so_is_one_that_goes_back_and_forth_between_paces(tmp_path: Path) -> None:
    out = tmp_path / "run"
    corrects = "async,weighting=none,lr_rule=none,correction=dc:0.5,momentum=zero"
    bounds = "kasync:2,lr_rule=none,correction=bound:0.05"
    shares = ["sync", corrects, "sync", bounds, corrects, "sync"]
    pace = "hybrid:" + ",".join(f"{name}@{share / len(shares):.3f}" for share, name in enumerate(shares))
    done = paceline_run(SCRIPTS / "stale.py", "sgd", out=out, workers=NUM_WORKERS, servers=1, pace=pace)
    assert done.returncode == 0, done.stderr
    assert [row["to"] for row in events(out) if row["event"] == "pace"] == shares[1:]
    expected, most = played_again(out, "none", "sgd")
    assert most > 0
    ours = load_file(out / "final.safetensors")
    for index, value in enumerate(expected):
        assert float((ours[str(index)] - value).norm() / value.norm()) < TOLERANCE
