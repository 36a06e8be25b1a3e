"""A run under a user's own policy: obeyed when it flaps, told off when it is wrong, never waited for, and gone with the run."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launch import events
from watched import Watched

Watch = Callable[..., Watched]
WITHIN_S = 120.0

TRAIN = """
import time
import torch, paceline
from torch.utils.data import DataLoader, TensorDataset

run = paceline.init({init})
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs({epochs}):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        time.sleep(0.01)
        optimizer.step()
"""

POLICIES = """
import time

def flaps(signals, history):
    print("asked of", signals.pace)
    return ("sync" if signals.pace == "async" else "async"), f"it was {signals.pace} after {len(history)} moves"

def raises(signals, history):
    return None, history[17].why

def sleeps(signals, history):
    time.sleep(3600)

def many(signals, history):
    return "ksync:9", "more than there are"

def three(signals, history):
    return "ksync:3", "three at least"
"""


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(POLICIES)
    return file


def script(*, epochs: int = 20, init: str = "") -> str:
    return TRAIN.format(epochs=epochs, init=init)


def decisions(run: Watched) -> list[dict[str, object]]:
    """The whole lines of decisions.jsonl so far."""
    file = run.out / "decisions.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("chosen_by", ["script", pytest.param("command line", marks=pytest.mark.slow)])
def test_a_policy_that_flaps_is_obeyed_and_loses_nothing(chosen_by: str, watch: Watch, policies: Path) -> None:
    pace = f"hybrid:{policies}:flaps"
    run = watch(script(init=f"pace={pace!r}"), pace=None) if chosen_by == "script" else watch(script(), pace=pace)
    assert run.code(WITHIN_S) == 0
    made = [event for event in events(run.out) if event["event"] == "pace"]
    asked = [row for row in decisions(run) if row["event"] == "decision"]
    assert len(made) >= 4
    assert [event["to"] for event in made] == (["async", "sync"] * len(made))[: len(made)]
    assert [row["why"] for row in asked if row["moved"]] == [event["why"] for event in made]
    assert (run.out / "logs" / "policy.log").read_text().splitlines() == [f"asked of {row['pace']}" for row in asked]
    assert "ledger: every sample once" in run.printed()
    summary = run.summary()
    assert (summary["moves"], summary["decisions"], summary["restores"]) == (len(made), len(asked), 0)
    assert sum(summary["paces"].values()) == summary["samples"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("raises", "raised IndexError: tuple index out of range (line 9)"),
        pytest.param(
            "many",
            "chose a pace that cannot be: pace 'ksync:9' needs 9 different workers for an update, with 2 it must be 1 to 2",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_policy_that_is_wrong_leaves_the_pace_and_is_told_once(function: str, says: str, watch: Watch, policies: Path) -> None:
    run = watch(script(), pace=f"hybrid:{policies}:{function}")
    assert run.code(WITHIN_S) == 0
    rows = decisions(run)
    assert len(rows) >= 2
    assert {row["held"] for row in rows} == {f"policy {policies}:{function} {says}"}
    assert run.printed().count(says) == 1
    assert run.summary()["moves"] == 0


def test_a_policy_that_takes_too_long_is_not_waited_for_and_ends_with_the_run(watch: Watch, policies: Path) -> None:
    run = watch(script(epochs=1000), pace=f"hybrid:{policies}:sleeps")
    run.wait_for(lambda: len(decisions(run)) >= 2)
    assert "sleeps took longer than 1 s to answer; the pace stays" in run.printed()
    answered_s = float(str(decisions(run)[0]["t_s"]))
    meanwhile = [
        event for event in events(run.out) if event["event"] == "update" and answered_s - 1.0 < float(str(event["t_s"])) < answered_s
    ]
    assert len(meanwhile) >= 3
    assert len(run.pids("advisor_main")) == 1
    run.process.send_signal(signal.SIGINT)
    assert run.code_soon() == 130


@pytest.mark.parametrize("part", ["coordinator_main", "paceline run"])
def test_nothing_is_left_of_a_policy_when_its_parents_are_killed(part: str, watch: Watch, policies: Path) -> None:
    run = watch(script(epochs=1000), pace=f"hybrid:{policies}:sleeps")
    run.wait_for(lambda: len(run.pids("advisor_main")) == 1)
    run.kill(part)
    run.process.wait(WITHIN_S)
    end_s = time.monotonic() + 10.0
    while run.pids():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.slow
def test_a_quorum_above_the_live_number_takes_what_there_is(watch: Watch, policies: Path) -> None:
    run = watch(script(epochs=60), pace=f"hybrid:{policies}:three", workers=3)
    run.wait_for(lambda: any(event["event"] == "pace" for event in events(run.out)))
    run.kill("worker_main worker 2")
    assert run.code(WITHIN_S) == 0
    assert "pace ksync:3 asks for 3 different workers and 2 are live" in run.printed()
    assert "ledger: every sample once" in run.printed()
