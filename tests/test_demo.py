"""The demo's table: what it reads from runs that are there, and how it names the moves."""

from __future__ import annotations

import re
import subprocess
import sys
from argparse import Namespace
from io import StringIO
from pathlib import Path
from statistics import mean, stdev

import pytest
from rich.console import Console

import demo
from launch import ROOT, environment
from paceline.config import read_recorded
from paceline.settings import slow_list
from report_pages import HYBRID, write_hybrid, write_run


def test_the_table_names_the_moves_of_the_hybrid_run_and_fits_a_terminal(tmp_path: Path) -> None:
    runs = {"sync": write_run(tmp_path / "sync", pace="sync"), "hybrid": write_hybrid(tmp_path / "hybrid")}
    outcomes = [demo.outcome(pace, out) for pace, out in runs.items()]
    shown = StringIO()
    console = Console(width=80, file=shown)
    console.print(demo.table(outcomes))
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert [line.strip() for line in lines[-3:]] == ["async from 33%", "back to sync at 60%", "backup:1 from 80%"]
    assert not any("…" in line for line in lines)
    assert [move.why for move in outcomes[1].moves] == [move.why for move in HYBRID]
    assert not outcomes[0].moves


def test_who_is_slow_is_said_with_the_part_of_the_work() -> None:
    assert [demo.slowed(one) for one in slow_list("1=3@0.33-0.66,2=4")] == [
        "worker 1 is 3 times slower from 33% to 66% of the work",
        "worker 2 is 4 times slower",
    ]


def test_step_times_vary_around_what_was_asked_for_and_are_the_same_for_every_run(tmp_path: Path) -> None:
    args = Namespace(step_ms=30.0, seed=0, out=tmp_path / "demo")
    times_s = read_recorded(str(demo.step_times(args)))
    assert abs(mean(times_s) - 0.030) < 0.0005
    assert 0.002 < stdev(times_s) < 0.004
    assert read_recorded(str(demo.step_times(args))) == times_s


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_ends_with_the_printed_table_and_names_its_pages(tmp_path: Path) -> None:
    told = ["--epochs", "1", "--workers", "2", "--slow", "1=2", "--step-ms", "2", "--out", str(tmp_path / "demo")]
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), *told]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment(COLUMNS="200"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [
        line.split()[0]
        for line in done.stdout.partition("MNIST digits on 2 workers")[2].splitlines()
        if " samples/s" not in line and "%" in line
    ]
    assert rows[:3] == ["sync", "async", "hybrid"]
    pages = re.findall(r"^(?:comparison|report of \w+): (.*)$", done.stdout, re.MULTILINE)
    assert len(pages) == 4
    assert all(Path(page).read_text().startswith("<!doctype html>") for page in pages)
