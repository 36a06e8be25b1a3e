"""What `hybrid` is worth on MNIST beside `sync` and `async`: time, accuracy and loss over paired seeds. Minutes: `make test-slow`.

Steps last as long as a file says (`--compute recorded`), so that two cores and their neighbours do not decide.
"""

from __future__ import annotations

import json
import random
from math import sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

import pytest

from launch import ROOT, paceline_run

pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "examples" / "mnist.py"
EPOCHS = 6
SEEDS = (0, 1, 2, 3, 4)
STEP_S = 0.05


class Result(NamedTuple):
    """How a run ended: seconds from the first lease to the last fold, the last epoch's test figures, errors of predictions."""

    wall_s: float
    accuracy: float
    loss: float
    moves: int
    errors: list[float]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step times of a machine with a little noise: normal, 5 % of the mean."""
    chance = random.Random(7)
    path = tmp_path_factory.mktemp("recorded") / "steps.txt"
    path.write_text("\n".join(f"{max(0.5 * STEP_S, chance.gauss(STEP_S, 0.05 * STEP_S)):.6f}" for _ in range(4000)))
    return path


def train(pace: str, seed: int, recorded: Path, out: Path, **options: object) -> Result:
    more: dict[str, object] = {"workers": 4, "pace": pace, "compute": f"recorded:{recorded}", "timeout_s": 600, **options}
    done = paceline_run(EXAMPLE, "--epochs", str(EPOCHS), "--seed", str(seed), out=out, **more)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ledger"]["skipped"] == summary["ledger"]["repeated"] == 0
    final = summary["final"]
    decisions = out / "decisions.jsonl"
    told = [json.loads(line) for line in decisions.read_text().splitlines()] if decisions.exists() else []
    errors = [line["error"] for line in told if line["event"] == "outcome"]
    return Result(summary["wall_s"], final["accuracy"], final["test_loss"], summary["moves"], errors)


def described(results: dict[str, list[Result]]) -> str:
    """Mean and spread of everything, for the reader of a failure and of `pytest -s`."""
    lines: list[str] = []
    for pace, runs in results.items():
        walls, scores, losses = [one.wall_s for one in runs], [one.accuracy for one in runs], [one.loss for one in runs]
        lines.append(
            f"{pace}: wall {median(walls):.2f} s (median; {min(walls):.2f} to {max(walls):.2f}), "
            f"accuracy {mean(scores):.4f} +- {stdev(scores):.4f}, test loss {mean(losses):.4f} +- {stdev(losses):.4f}, "
            f"moves {[one.moves for one in runs]}, errors of predictions {[round(error, 3) for one in runs for error in one.errors]}"
        )
    return "\n".join(lines)


def compare(recorded: Path, out: Path, **options: object) -> dict[str, list[Result]]:
    """`sync`, `hybrid` and `async` interleaved over the seeds."""
    results: dict[str, list[Result]] = {"sync": [], "hybrid": [], "async": []}
    for seed in SEEDS:
        for pace in results if seed % 2 == 0 else reversed(results):
            results[pace].append(train(pace, seed, recorded, out / f"{pace}-{seed}", **options))
    print(described(results))
    return results


def ratio(results: dict[str, list[Result]]) -> float:
    """Median wall time of hybrid over that of sync."""
    return median(one.wall_s for one in results["hybrid"]) / median(one.wall_s for one in results["sync"])


def assert_predicted(results: dict[str, list[Result]]) -> None:
    """After a move, what came is what was predicted, within a fifth in the median."""
    errors = [error for one in results["hybrid"] for error in one.errors]
    assert not errors or median(errors) <= 0.2, described(results)


def assert_as_accurate(results: dict[str, list[Result]], pace: str = "hybrid") -> None:
    """Not worse than sync by more than half a point and two standard errors of the paired differences."""
    differences = [theirs.accuracy - ours.accuracy for theirs, ours in zip(results["sync"], results[pace], strict=True)]
    error = stdev(differences) / sqrt(len(differences))
    assert mean(differences) <= 0.005 + 2 * error, described(results)


@pytest.mark.timeout(1800)
def test_on_even_workers_hybrid_costs_nothing(recorded: Path, tmp_path: Path) -> None:
    results = compare(recorded, tmp_path)
    assert ratio(results) <= 1.05, described(results)
    assert_as_accurate(results)


@pytest.mark.timeout(3600)
def test_with_one_worker_four_times_slower_hybrid_takes_about_half_of_syncs_time(recorded: Path, tmp_path: Path) -> None:
    results = compare(recorded, tmp_path, slow="1=4")
    assert ratio(results) <= 0.55, described(results)
    assert_predicted(results)
    assert_as_accurate(results)


@pytest.mark.timeout(3600)
def test_with_a_straggler_in_the_middle_third_hybrid_is_faster_than_sync(recorded: Path, tmp_path: Path) -> None:
    results = compare(recorded, tmp_path, slow="1=4@0.33-0.66")
    assert ratio(results) < 1.0, described(results)
    assert_predicted(results)
    assert_as_accurate(results)


@pytest.mark.timeout(3600)
def test_wall_time_is_linear_in_the_share_of_sync(recorded: Path, tmp_path: Path) -> None:
    """R4, Li et al. 2021: T(p) = p T_sync + (1 - p) T_async within 7 %; here with a worker twice as slow, so that they differ."""
    wall = {}
    for share in (0.0, 0.25, 0.5, 1.0):
        pace = {0.0: "async", 1.0: "sync"}.get(share, f"hybrid:sync@0,async@{share}")
        wall[share] = train(pace, 0, recorded, tmp_path / f"share-{share}", slow="1=2").wall_s
    for share, wall_s in wall.items():
        expected = share * wall[1.0] + (1 - share) * wall[0.0]
        assert abs(wall_s - expected) <= 0.07 * expected, wall


@pytest.mark.timeout(3600)
def test_the_order_of_sync_and_async_is_reported_over_paired_seeds(recorded: Path, tmp_path: Path) -> None:
    """R4 found sync first better by 1.9 points on CIFAR-10; MNIST is easier, so both are reported and held to sync's."""
    paces = {"sync first": "hybrid:sync@0,async@0.25", "async first": "hybrid:async@0,sync@0.75", "sync": "sync"}
    results: dict[str, list[Result]] = {name: [] for name in paces}
    for seed in SEEDS:
        for name, pace in paces.items():
            results[name].append(train(pace, seed, recorded, tmp_path / f"{name}-{seed}".replace(" ", "-")))
    print(described(results))
    assert_as_accurate(results, "sync first")
    assert all(one.moves == 1 for name in ("sync first", "async first") for one in results[name])


@pytest.mark.timeout(1800)
def test_the_transient_after_the_switch_does_not_switch_back(recorded: Path, tmp_path: Path) -> None:
    for seed in SEEDS:
        out = tmp_path / str(seed)
        result = train("hybrid:syncswitch", seed, recorded, out)
        paces = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines() if '"pace"' in line]
        moves = [(event["from"], event["to"]) for event in paces if event["event"] == "pace"]
        assert moves == [("sync", "async")]
        assert result.moves == 1
