"""The MNIST example learns in every kind of pace, and uneven machines are where the paces differ. Minutes: `make test-slow`."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest

from launch import ROOT, paceline_run

pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "examples" / "mnist.py"


def accuracies(out: Path) -> list[float]:
    """The test accuracy of each epoch."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["accuracy"] for line in lines if "accuracy" in line]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("pace", ["sync", "async", "ssp:3", "ksync:3", "softsync:2"])
def test_mnist_reaches_96_5_percent_in_its_best_of_15_epochs(pace: str, seed: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = paceline_run(EXAMPLE, "--epochs", "15", "--seed", str(seed), out=out, workers=4, pace=pace, timeout_s=500)
    assert done.returncode == 0, done.stderr
    assert max(accuracies(out)) >= 0.965


@pytest.mark.timeout(1800)
def test_with_one_worker_four_times_slower_async_and_ksync_finish_early_and_as_good(tmp_path: Path) -> None:
    wall_s: dict[str, list[float]] = {}
    accuracy: dict[str, list[float]] = {}
    for seed in (0, 1, 2):
        for pace in ("sync", "async", "ksync:3"):
            out = tmp_path / f"{pace.replace(':', '')}-{seed}"
            options: dict[str, object] = {"workers": 4, "pace": pace, "slow": "1=4", "timeout_s": 500}
            done = paceline_run(EXAMPLE, "--epochs", "8", "--seed", str(seed), out=out, **options)  # type: ignore[arg-type]
            assert done.returncode == 0, done.stderr
            summary = json.loads((out / "summary.json").read_text())
            wall_s.setdefault(pace, []).append(summary["wall_s"])
            accuracy.setdefault(pace, []).append(summary["final"]["accuracy"])
    assert mean(wall_s["async"]) <= 0.5 * mean(wall_s["sync"]), wall_s
    assert mean(wall_s["ksync:3"]) <= 0.6 * mean(wall_s["sync"]), wall_s
    for pace in ("async", "ksync:3"):
        assert abs(mean(accuracy[pace]) - mean(accuracy["sync"])) <= 0.01, accuracy
