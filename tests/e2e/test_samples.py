"""With leases `exact` every sample is in exactly one applied gradient, proven from the parameters."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launch import SCRIPTS, paceline_run, paceline_without

ALONE = ["async,weighting=none", "ssp:2"]
PACES = ["sync", "softsync:1,weighting=none", *ALONE, "ksync:2", "backup:1", "kbatchsync:2", "kasync:2", "kbatchasync:2"]
SAMPLES, EPOCHS, BATCH, WORKERS = 90, 2, 3, 3
QUICK_KILLS = (0, 2, 3, 4, 6, 8)
"""Seeds of six paces, of which the other three are quick to test without a kill; all of both is `make test-slow`."""


def folded_once(value: float, *, num_workers: int, most: int, exact_weight: bool) -> bool:
    """Whether `value` is (1 + tag) / k of one computation in an update of k gradients."""
    tags = {2.0 ** -(1 + power) for power in range(num_workers * 5)}
    sizes = [1] if exact_weight else range(1, most + 1)
    return any(abs(value * k - 1 - tag) < 1e-6 * k for k in sizes for tag in tags)


def assert_every_sample_once(out: Path, pace: str) -> None:
    counts = -load_file(out / "final.safetensors")["count"].to(torch.float64)
    wrong = [
        (epoch, sample, float(counts[epoch, sample]))
        for epoch in range(EPOCHS)
        for sample in range(SAMPLES)
        if not folded_once(float(counts[epoch, sample]), num_workers=WORKERS, most=2 * WORKERS, exact_weight=pace in ALONE)
    ]
    assert not wrong, wrong[:10]
    ledger = json.loads((out / "summary.json").read_text())["ledger"]
    assert ledger == {"once": EPOCHS * SAMPLES, "repeated": 0, "skipped": 0, "undone": 0}


def options(pace: str) -> dict[str, object]:
    """No learning rate rule: a parameter then holds what was folded."""
    return {"workers": WORKERS, "servers": 2, "pace": pace, "lr_rule": "none"}


@pytest.mark.parametrize("pace", [pytest.param(pace, marks=pytest.mark.slow if at in QUICK_KILLS else ()) for at, pace in enumerate(PACES)])
def test_every_sample_is_folded_once(pace: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = paceline_run(SCRIPTS / "counting.py", str(SAMPLES), str(EPOCHS), str(BATCH), "0", out=out, **options(pace))
    assert done.returncode == 0, done.stderr
    assert_every_sample_once(out, pace)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed in QUICK_KILLS else pytest.mark.slow) for seed in range(20)])
def test_every_sample_is_folded_once_when_a_worker_is_killed(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    pace, out = PACES[seed % len(PACES)], tmp_path / "run"
    updates, pause_s, victim = chance.randint(1, 15), chance.uniform(0.0, 0.05), chance.randrange(WORKERS)
    script = (SCRIPTS / "counting.py", str(SAMPLES), str(EPOCHS), str(BATCH), "0.05")
    paceline_without(victim, *script, out=out, updates=updates, before=lambda: time.sleep(pause_s), **options(pace))
    assert_every_sample_once(out, pace)
    assert json.loads((out / "summary.json").read_text())["lost"] == [victim]
