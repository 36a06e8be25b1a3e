"""What a change of pace costs beside a step: runs of 25 M parameters that go back and forth between two paces.

A schedule keeps no state to go back to, so runs with one move of a policy, which does, stand beside it: there all that
is kept is allocated too. The cost of a change is the time from some updates before it to some updates after it, less
what these samples take where neither pace is disturbed: the drain, what is refused and all copies are in it. Prints a
table and writes JSON. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from workload import BATCH, WIDTHS

HERE = Path(__file__).parent
TIMEOUT_S = 600.0
AROUND = 4
"""Sync updates' worth of samples on each side of a change that count as its surroundings; twice as many as a run's beginning."""
ONE_MOVE = "hybrid:syncswitch:0.5"


class Update(NamedTuple):
    """One line of events.jsonl: when, how many samples in all, under which pace."""

    t_s: float
    samples: int
    pace: str


class Change(NamedTuple):
    """From one pace to another, and what it cost."""

    name: str
    ms: float


class Outcome(NamedTuple):
    """One run: its changes in order, milliseconds of a step (one of every worker) under each pace."""

    changes: list[Change]
    step_ms: dict[str, float]


def schedule(paces: tuple[str, str], num_changes: int) -> str:
    """The two paces in turn, `num_changes` times, after equal shares of the work."""
    return "hybrid:" + ",".join(f"{paces[i % 2]}@{i / (num_changes + 1):.6g}" for i in range(num_changes + 1))


def run(pace: str, *, size: str, num_steps: int, num_workers: int) -> list[Update]:
    """Play the schedule; the updates in their order."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "paceline", "run", "--workers", str(num_workers), "--pace", pace, "--out", str(out)]
        command += [str(HERE / "peers" / "change_step.py"), size, str(num_steps)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
        rows = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return [Update(row["t_s"], row["samples"], row["pace"]) for row in rows if row["event"] == "update"]


def stretches(updates: list[Update]) -> list[list[Update]]:
    """The updates between two changes of pace."""
    found: list[list[Update]] = [[updates[0]]]
    for before, after in pairwise(updates):
        if after.pace != before.pace:
            found.append([])
        found[-1].append(after)
    return found


def judge(updates: list[Update], num_workers: int) -> Outcome:
    """The cost of every change of a run."""
    around, found = AROUND * num_workers * BATCH, stretches(updates)
    rates: dict[str, list[float]] = {}
    for number, stretch in enumerate(found):
        low, high = stretch[0].samples + around * (1 if number else 2), stretch[-1].samples - around
        calm = [one for one in stretch if low <= one.samples <= high]
        if len(calm) < 2:
            raise RuntimeError(f"a stretch of {len(stretch)} updates under {stretch[0].pace} is too short to have a calm part")
        rates.setdefault(stretch[0].pace, []).append((calm[-1].t_s - calm[0].t_s) / (calm[-1].samples - calm[0].samples))
    sample_s = {pace: median(some) for pace, some in rates.items()}
    changes: list[Change] = []
    for old, new in pairwise(found):
        at = old[-1]
        start = next(one for one in reversed(old) if at.samples - one.samples >= around)
        end = next(one for one in new if one.samples - at.samples >= around)
        calm_s = (at.samples - start.samples) * sample_s[at.pace] + (end.samples - at.samples) * sample_s[end.pace]
        changes.append(Change(f"{at.pace} -> {end.pace}", 1e3 * (end.t_s - start.t_s - calm_s)))
    return Outcome(changes, {pace: 1e3 * one * num_workers * BATCH for pace, one in sample_s.items()})


def show(outcomes: list[Outcome], kept: list[Outcome]) -> dict[str, object]:
    """Print the table; return what the JSON file holds. `outcomes` are of schedules, `kept` of moves with a kept state."""
    from rich.console import Console
    from rich.table import Table

    step_ms = {pace: median(one.step_ms[pace] for one in outcomes) for pace in outcomes[0].step_ms}
    mean_step_ms = mean(step_ms.values())
    costs: dict[str, list[float]] = {}
    for also, some in (("", outcomes), (", a state kept", kept)):
        for change in (change for outcome in some for change in outcome.changes):
            costs.setdefault(change.name + also, []).append(change.ms)
    steps = ", ".join(f"{pace} {ms:.1f} ms" for pace, ms in step_ms.items())
    table = Table("change", "times", "ms", "lowest", "highest", "of a mean step", "", title=f"a step: {steps}, mean {mean_step_ms:.1f} ms")
    rows: list[dict[str, object]] = []
    for name, some in sorted(costs.items()):
        share = median(some) / mean_step_ms
        verdict = "reached" if share < 1.0 else "MISSED"
        table.add_row(name, str(len(some)), f"{median(some):.1f}", f"{min(some):.1f}", f"{max(some):.1f}", f"{share:.2f}", verdict)
        rows.append({"change": name, "ms": some, "median_ms": median(some), "of_a_mean_step": share, "below": 1.0})
    Console().print(table)
    return {"step_ms": step_ms, "mean_step_ms": mean_step_ms, "changes": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--changes", type=int, default=11, help="changes of a run, back and forth in turn")
    parser.add_argument("--moves", type=int, default=9, help="runs with one move of a policy from sync to async")
    parser.add_argument("--steps", type=int, default=24, help="steps of a worker between two changes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", choices=WIDTHS, default="25m")
    parser.add_argument("--paces", nargs=2, default=("sync", "async"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "change.json")
    args = parser.parse_args()
    if args.steps < 3 * AROUND + 4:
        parser.error(f"--steps must be at least {3 * AROUND + 4}, so that a calm part is left between two changes, got {args.steps}")
    if args.repeats < 1 or args.moves < 0:
        parser.error(f"--repeats must be at least 1 and --moves at least 0, got {args.repeats} and {args.moves}")
    outcomes: list[Outcome] = []
    kept: list[Outcome] = []
    for repeat in range(max(args.repeats, args.moves)):
        if repeat < args.repeats:
            pace, num_steps = schedule(tuple(args.paces), args.changes), args.steps * (args.changes + 1)
            outcomes.append(judge(run(pace, size=args.size, num_steps=num_steps, num_workers=args.workers), args.workers))
        if repeat < args.moves:
            kept.append(judge(run(ONE_MOVE, size=args.size, num_steps=4 * args.steps, num_workers=args.workers), args.workers))
        print(f"{repeat + 1}: {[one.ms for some in (outcomes, kept) for one in some[-1].changes]}", file=sys.stderr, flush=True)
    shown = show(outcomes, kept)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(shown, indent=1))
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
