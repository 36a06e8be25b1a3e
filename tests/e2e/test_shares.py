"""Batches that are cut by speed in real runs: each sample counts once and as much as any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from launch import SCRIPTS, events, paceline_run, paceline_without

WORKERS, BATCH, EPOCHS = 4, 8, 2
CUT = WORKERS * BATCH


def options(pace: str) -> dict[str, object]:
    return {"workers": WORKERS, "servers": 2, "pace": pace, "lr_rule": "none", "shares": "speed"}


def counts(out: Path) -> torch.Tensor:
    """What each sample of each epoch weighs in the parameters."""
    return -load_file(out / "final.safetensors")["count"].to(torch.float64)


def summary(out: Path) -> dict[str, Any]:
    return json.loads((out / "summary.json").read_text())


def test_in_sync_every_sample_counts_as_in_a_whole_batch_however_that_is_cut(tmp_path: Path) -> None:
    out, num_samples = tmp_path / "run", 20 * CUT + BATCH
    done = paceline_run(SCRIPTS / "shares.py", str(num_samples + 3), str(EPOCHS), str(BATCH), "0.004", "2", out=out, **options("sync"))
    assert done.returncode == 0, done.stderr
    for epoch in counts(out):
        weights, times = torch.unique((1.0 / epoch[epoch > 0.0]).round(decimals=3), return_counts=True)
        assert dict(zip(weights.tolist(), times.tolist(), strict=True)) == {CUT: 20 * CUT, BATCH: BATCH}
        assert int((epoch == 0.0).sum()) == 3  # drop_last
    assert summary(out)["ledger"] == {"once": EPOCHS * num_samples, "repeated": 0, "skipped": 0, "undone": 0}
    assert summary(out)["updates"] == EPOCHS * 21
    parts = [event["parts"] for event in events(out) if event["event"] == "shares"]
    assert parts[-1]["1"] < 0.7 * min(parts[-1][worker] for worker in "023")  # type: ignore[index]
    books = summary(out)["per_worker"]
    assert all(books["1"]["samples"] < books[worker]["samples"] for worker in "023")
    assert {book["steps"] for book in books.values()} == {EPOCHS * 21}


def test_every_sample_counts_once_when_a_worker_is_killed(tmp_path: Path) -> None:
    out, num_samples = tmp_path / "run", 20 * CUT
    script = (SCRIPTS / "shares.py", str(num_samples), str(EPOCHS), str(BATCH), "0.001", "0")
    paceline_without(2, *script, out=out, updates=30, **options("async,weighting=none"))
    sizes = 1.0 / counts(out)
    assert torch.equal(sizes.round(), sizes.round(decimals=3))
    assert summary(out)["ledger"] == {"once": EPOCHS * num_samples, "repeated": 0, "skipped": 0, "undone": 0}
    assert summary(out)["lost"] == [2]
