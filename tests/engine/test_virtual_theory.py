"""Published numbers, reproduced: the roles on a timeline do what the theory of the paces says, and docs/theory.md tells it."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import sync_switch
import theory
from launch import ROOT
from paceline.cli import main
from paceline.engine.virtual.trainee import workload
from theory import LEARNERS, MEANS, QUORUMS, TAILS, UNINTERRUPTED
from trials import Trial, summary_of
from virtually import IDEAL, timed

PAGE = (ROOT / "docs" / "theory.md").read_text()
TOLD = json.loads((ROOT / "docs" / "images" / "theory.json").read_text())
SHARES = json.loads((ROOT / "docs" / "images" / "sync-switch.json").read_text())


# Zhang, Gupta, Lian, Liu: Staleness-aware Async-SGD (2016), fig. 1: 30 learners, service time N(1, 0.05); measured
# again in a simulation of its own. The means hold for exponential service too, with P(tau > 2n) as given.
@pytest.mark.parametrize("n", MEANS)
def test_the_staleness_of_softsync_is_that_of_the_paper(n: int) -> None:
    found = theory.of_staleness(n, "normal")
    assert found["mean"] == pytest.approx(MEANS[n], rel=0.02)
    assert found["max"] <= 2 * n
    assert found in TOLD["staleness"]


@pytest.mark.parametrize("n", MEANS)
def test_exponential_service_has_the_same_mean_and_a_tail(n: int) -> None:
    found = theory.of_staleness(n, "exponential")
    assert found["mean"] == pytest.approx(MEANS[n], rel=0.02)
    assert found["beyond"] == pytest.approx(TAILS[n], abs=0.01)
    assert found in TOLD["staleness"]


@pytest.mark.parametrize("pace", ["softsync:30", "async"])
def test_the_first_round_of_every_epoch_moves_no_further_than_one_update_of_sync(pace: str) -> None:
    """All workers begin at once then, so their gradients are of the same parameters; the weights of one round add up to about 1."""
    taken: dict[int, float] = {}

    def watch(event: dict[str, Any], _: float) -> None:
        if event["event"] == "update":
            for member in event["members"]:
                read = event["version"] - 1 - member["staleness"]
                taken[read] = taken.get(read, 0.0) + member["weight"]

    work = workload(4, 6 * LEARNERS, num_epochs=3, num_workers=LEARNERS)
    outcome = timed(pace, work, f'{IDEAL}[[workers]]\ncompute = 1.0\nfactor = "exponential"', num_workers=LEARNERS, watch=watch)
    assert outcome.end.code == 0
    assert max(taken.values()) < 1.1


# Dutta, Joshi, Ghosh, Dube, Nagpurkar: Slow and Stale Gradients Can Win the Race (2018): P = 8, service Exp(1).
FEW, MANY = 1000, 20_000


@pytest.mark.parametrize("updates", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("k", QUORUMS)
def test_ksync_takes_the_time_of_the_kth_of_eight(k: int, updates: int) -> None:
    law = theory.ksync_law(k)
    assert theory.time_per_update("ksync", k, "at once", updates=updates) == pytest.approx(law.mean, abs=3 * law.error(updates))


@pytest.mark.parametrize("updates", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("k", QUORUMS)
def test_kbatchasync_takes_the_time_of_k_arrivals(k: int, updates: int) -> None:
    law = theory.kbatchasync_law(k)
    assert theory.time_per_update("kbatchasync", k, "at step end", updates=updates) == pytest.approx(law.mean, abs=3 * law.error(updates))


@pytest.mark.parametrize("k", QUORUMS)
def test_a_step_that_cannot_be_interrupted_makes_ksync_slower(k: int) -> None:
    assert theory.time_per_update("ksync", k, "at step end", updates=2 * FEW) == pytest.approx(UNINTERRUPTED[k], rel=0.04)


# The first paper again, fig. 3: without a smaller learning rate staleness ruins the training, with it it costs nothing.
@pytest.mark.timeout(120)
def test_softsync_as_it_is_typed_learns_with_as_many_parts_as_workers(tmp_path: Path) -> None:
    trial = Trial(ROOT / "examples" / "digits.py", theory.CLUSTERS["normal"], f"softsync:{LEARNERS}", 0, ("--epochs", "2"))
    assert summary_of(trial, tmp_path / "run")["final"]["error"] < 0.15


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_learning_rate_divided_by_the_staleness_saves_softsync(tmp_path: Path) -> None:
    rules = ("sync", "unmodified", "staleness")
    rows = {(row["rule"], row["n"]): row["errors"] for row in theory.of_errors(tmp_path, range(3), ("--epochs", "60"), 1, rules=rules)}
    sync = rows["sync", 0]
    assert max(sync) <= 0.024
    assert all(error is None or error > 0.5 for error in rows["unmodified", 30])
    for n in theory.NUMBERS:
        assert rows["staleness", n] == pytest.approx(sync, abs=0.01)


# --- the page ---------------------------------------------------------------------------------------------------


def test_every_table_of_the_page_is_what_the_command_wrote() -> None:
    for table in (theory.staleness_table(TOLD["staleness"]), theory.time_table(TOLD["time"]), theory.error_table(TOLD["error"])):
        assert table in PAGE


def test_what_the_page_tells_is_within_the_tolerances() -> None:
    for row in TOLD["time"]:
        assert row["updates"] == MANY
        for name in ("ksync", "kbatchasync"):
            assert abs(row[name]["time"] - row[name]["law"]) <= 3 * row[name]["error"]
    errors = {(row["rule"], row["n"]): row["errors"] for row in TOLD["error"]}
    sync = errors["sync", 0]
    assert len(sync) == 3
    for n in theory.NUMBERS:
        for rule in ("parts", "staleness", "exponential"):
            assert errors[rule, n] == pytest.approx(sync, abs=0.01)
    assert all(error is None or error > 0.5 for error in errors["unmodified", 30])


def test_a_time_of_the_page_comes_out_again() -> None:
    assert round(theory.time_per_update("kbatchasync", 1, "at step end", updates=MANY), 4) == TOLD["time"][0]["kbatchasync"]["time"]


def test_the_runs_that_the_page_shows_are_understood(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = re.findall(r"^paceline run (.*)$", PAGE, re.MULTILINE)
    assert commands
    for command in commands:
        assert main(["config", "explain", *shlex.split(command)]) == 0, command
    assert "softsync:30" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_command_of_the_page_writes_its_numbers_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "python examples/theory.py --out docs/images\n" in PAGE
    short = ["--updates", "50", "--seeds", "1", "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", ["theory.py", "--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs"), *short])
    theory.main()
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"theory.json", *re.findall(r"\]\(images/(theory-\w+\.svg)\)", PAGE)}
    assert [len(part) for part in json.loads((tmp_path / "out" / "theory.json").read_text()).values()] == [
        len(part) for part in TOLD.values()
    ]


# --- Sync-Switch ------------------------------------------------------------------------------------------------


def test_the_table_of_shares_is_what_the_command_wrote_and_has_the_published_shape() -> None:
    assert sync_switch.share_table(SHARES) in PAGE
    assert "python examples/sync_switch.py --out docs/images\n" in PAGE
    rows = {row["share"]: row for row in SHARES}
    assert [row["pace"] for row in SHARES] == list(sync_switch.paces().values())
    for row in SHARES:
        assert row["virtual_s"] == pytest.approx(row["line_s"], rel=0.07)
    accuracy = {share: mean(row["accuracies"]) for share, row in rows.items()}
    assert accuracy["0"] < accuracy["0.05"] < accuracy["1"]
    assert accuracy["0"] < accuracy[sync_switch.LAST] < accuracy["1"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_command_of_shares_writes_its_numbers_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = ["--seeds", "1", "--epochs", "1", "--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", ["sync_switch.py", *short])
    sync_switch.main()
    rows = json.loads((tmp_path / "out" / "sync-switch.json").read_text())
    assert [row["share"] for row in rows] == [row["share"] for row in SHARES]
    for row in rows:
        assert row["virtual_s"] == pytest.approx(row["line_s"], rel=0.07)
    assert (tmp_path / "out" / "sync-switch.svg").read_text().startswith("<svg")


# --- speed ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("num_servers", "steps_per_s"), [(1, 5000), (8, 2000)])
def test_a_thousand_workers_are_timed_at_thousands_of_steps_a_second(num_servers: int, steps_per_s: int) -> None:
    """Half of what a core of this project's machine makes when it has nothing else to do."""
    cluster = '[[workers]]\nfactor = "lognormal"\nspread = 0.05'
    work, start_s = workload(400_000, 100_000, num_workers=1000), time.process_time()
    outcome = timed("async", work, cluster, num_workers=1000, num_servers=num_servers)
    assert outcome.end.code == 0
    assert outcome.summary["updates"] / (time.process_time() - start_s) > steps_per_s  # type: ignore[operator]
