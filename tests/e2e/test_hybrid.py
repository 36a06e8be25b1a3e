"""A live run changes its pace and loses nothing: proven from the parameters, with real processes."""

from __future__ import annotations

import json
from itertools import cycle, islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launch import ROOT, SCRIPTS, events, paceline_run

CHANGES = 200
SAMPLES, EPOCHS, WORKERS = 1800, 1, 4
PLAIN = [
    "sync",
    "async,weighting=none",
    "ksync:2",
    "ssp:2",
    "kasync:3",
    "backup:1",
    "kbatchsync:2",
    "kbatchasync:3",
    "softsync:2,weighting=none",
]


def schedule(paces: list[str], num_changes: int) -> str:
    """Each pace for an equal share of the work, in turn."""
    names = islice(cycle(paces), num_changes + 1)
    return "hybrid:" + ",".join(f"{pace}@{at / (num_changes + 1):.6f}" for at, pace in enumerate(names))


MOST_MEMBERS = 64
"""Of an update: while one worker still computes on the shards' own memory when `async` begins, the others' gradients gather."""


def is_folded_once(value: float) -> bool:
    """Whether `value` is (1 + tag) / k of one computation in an update of k gradients of one sample each (see counting.py)."""
    tags = {2.0 ** -(1 + power) for power in range(WORKERS * 5)}
    return any(abs(value * k - 1 - tag) < 1e-6 * k for k in range(1, MOST_MEMBERS + 1) for tag in tags)


@pytest.mark.timeout(180)
def test_two_hundred_changes_of_pace_lose_nothing_and_restart_nobody(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options: dict[str, object] = {"workers": WORKERS, "servers": 2, "lr_rule": "none", "pace": schedule(PLAIN, CHANGES), "timeout_s": 150}
    done = paceline_run(SCRIPTS / "counting.py", str(SAMPLES), str(EPOCHS), "1", "0.002", out=out, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["moves"] >= CHANGES - 5
    assert summary["ledger"] == {"once": EPOCHS * SAMPLES, "repeated": 0, "skipped": 0, "undone": 0}
    counts = -load_file(out / "final.safetensors")["count"].to(torch.float64)
    assert [at for at, value in enumerate(counts.flatten().tolist()) if not is_folded_once(value)] == []
    told = events(out)
    versions = [event["version"] for event in told if event["event"] == "update"]
    assert versions == list(range(1, len(versions) + 1))
    joins = [(event["role"], event["id"]) for event in told if event["event"] == "join"]
    assert len(joins) == len(set(joins)) == WORKERS + 2
    assert not [event for event in told if event["event"] == "leave" and event["reason"] != "done"]


@pytest.mark.timeout(180)
def test_one_worker_that_goes_from_sync_to_async_and_back_trains_the_same_bits(tmp_path: Path) -> None:
    finals: list[bytes] = []
    for name, pace in (("stays", "sync"), ("moves", "hybrid:sync@0,async@0.3,ssp:2@0.5,sync@0.7")):
        done = paceline_run(ROOT / "examples" / "mnist.py", "--epochs", "1", out=tmp_path / name, workers=1, pace=pace)
        assert done.returncode == 0, done.stderr
        finals.append((tmp_path / name / "final.safetensors").read_bytes())
    assert json.loads((tmp_path / "moves" / "summary.json").read_text())["moves"] == 3
    assert finals[0] == finals[1]
