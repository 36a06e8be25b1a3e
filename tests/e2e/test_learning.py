"""The MNIST example learns in every kind of pace, and uneven machines are where the paces differ. Minutes: `make test-slow`."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import NamedTuple

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


class Uneven(NamedTuple):
    """What three seeds came to, with one worker of four that is four times slower."""

    wall_s: dict[str, float]
    accuracy: dict[str, float]


def uneven(out: Path, epochs: int, **options: object) -> Uneven:
    """The means of three seeds in each pace, one pace after the other for each."""
    wall_s, accuracy = (dict[str, list[float]]() for _ in range(2))
    for seed in (0, 1, 2):
        for pace in ("sync", "async", "ksync:3"):
            run = out / f"{pace.replace(':', '')}-{seed}"
            given: dict[str, object] = {"workers": 4, "pace": pace, "slow": "1=4", "timeout_s": 500, **options}
            done = paceline_run(EXAMPLE, "--epochs", str(epochs), "--seed", str(seed), out=run, **given)  # type: ignore[arg-type]
            assert done.returncode == 0, done.stderr
            summary = json.loads((run / "summary.json").read_text())
            wall_s.setdefault(pace, []).append(summary["wall_s"])
            accuracy.setdefault(pace, []).append(summary["final"]["accuracy"])
    print(wall_s, accuracy)
    return Uneven({pace: mean(all_s) for pace, all_s in wall_s.items()}, {pace: mean(all_s) for pace, all_s in accuracy.items()})


@pytest.fixture(scope="module")
def on_these_cores(tmp_path_factory: pytest.TempPathFactory) -> Uneven:
    """Steps take what they take, also from each other where workers are more than cores."""
    return uneven(tmp_path_factory.mktemp("uneven"), 8)


@pytest.mark.timeout(1800)
def test_with_one_worker_four_times_slower_async_takes_half_the_time_and_learns_as_well(on_these_cores: Uneven) -> None:
    wall_s, accuracy = on_these_cores
    assert wall_s["async"] <= 0.5 * wall_s["sync"], wall_s
    for pace in ("async", "ksync:3"):
        assert abs(accuracy[pace] - accuracy["sync"]) <= 0.01, accuracy


@pytest.mark.timeout(1800)
def test_with_one_worker_four_times_slower_ksync_takes_less_of_the_time(on_these_cores: Uneven) -> None:
    wall_s, _ = on_these_cores
    assert wall_s["ksync:3"] <= 0.6 * wall_s["sync"], wall_s


@pytest.mark.timeout(1800)
def test_where_cores_do_not_decide_one_worker_four_times_slower_costs_async_and_ksync_less_still(tmp_path: Path) -> None:
    steps = tmp_path / "steps.txt"
    steps.write_text("0.05\n")  # several times what they take of a core
    wall_s, _ = uneven(tmp_path, 3, compute=f"recorded:{steps}")
    assert wall_s["async"] <= 0.5 * wall_s["sync"], wall_s
    assert wall_s["ksync:3"] <= 0.6 * wall_s["sync"], wall_s
