"""The same job in sync, async and hybrid, with a worker that is slow for a while: how long it takes, and what it costs in accuracy.

`make demo`. Runs `paceline run` once for each, prints a table with the moves of the hybrid run and the reasons for
them, and writes a page that compares the runs.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from paceline.dash.compare import compare_page
from paceline.dash.decisions import Change
from paceline.dash.digest import read_digest
from paceline.settings import Slow, slow_list
from paceline.trace.record import read_metrics, read_summary

PACES = ("sync", "async", "hybrid")
SCRIPT = Path(__file__).with_name("mnist.py")
LIMIT_S = 240.0
NUM_STEPS = 4096


class Move(NamedTuple):
    """A change of pace: after which share of the samples, what to, why, and whether it took an earlier one back."""

    share: float
    to: str
    why: str
    restored: bool


class Outcome(NamedTuple):
    """What a run leaves that is worth comparing."""

    pace: str
    wall_s: float
    samples_per_s: float
    best_accuracy: float
    staleness: float
    wait_share: float
    moves: list[Move]


def train(pace: str, out: Path, args: argparse.Namespace) -> None:
    """One `paceline run`, its output shown as it comes. Ends the demo when it fails."""
    command = [
        sys.executable,
        "-m",
        "paceline",
        "run",
        "--workers",
        str(args.workers),
        "--pace",
        pace,
        "--slow",
        ",".join(map(str, args.slow)),
    ]
    if args.step_ms:
        command += ["--compute", f"recorded:{step_times(args)}"]
    command += ["--seed", str(args.seed), "--out", str(out), str(SCRIPT)]
    command += ["--epochs", str(args.epochs), "--batch-size", str(args.batch_size), "--lr", str(args.lr), "--seed", str(args.seed)]
    try:
        done = subprocess.run(command, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"the run {out} took longer than {LIMIT_S:g} s and was ended")
    if done.returncode:
        sys.exit(f"the run {out} ended with code {done.returncode}; its logs are in {out / 'logs'}")


def step_times(args: argparse.Namespace) -> Path:
    """A file of step times around `--step-ms`, varied as real ones are: its runs are as on a machine with a core a worker."""
    path = args.out / "steps.txt"
    if not path.exists():
        draw = random.Random(args.seed)
        args.out.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{args.step_ms / 1000 * draw.lognormvariate(0.0, 0.1):.6f}\n" for _ in range(NUM_STEPS)))
    return path


def outcome(pace: str, out: Path) -> Outcome:
    """The figures of a finished run, from what it wrote."""
    summary: dict[str, Any] = read_summary(out)
    workers = summary["per_worker"].values()
    compute_s, wait_s = (sum(worker[key] for worker in workers) for key in ("compute_s", "wait_s"))
    accuracies = [row["accuracy"] for row in read_metrics(out) if "accuracy" in row]
    return Outcome(
        pace,
        summary["wall_s"],
        summary["samples"] / summary["wall_s"],
        max(accuracies),  # type: ignore[type-var]
        summary["staleness"]["mean"],
        wait_s / (compute_s + wait_s),
        [_move(change, summary["samples"]) for change in read_digest(out).changes],
    )


def _move(change: Change, samples: int) -> Move:
    move = change.move
    return Move(move.samples / samples if change.share is None else change.share, move.after, move.why, move.undone is not None)


def table(outcomes: list[Outcome]) -> Table:
    """The outcomes side by side: moves, times relative to the first, the best accuracy, the mean staleness, the time spent waiting."""
    shown = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("pace", no_wrap=True)
    for column in ("time", "ratio", "samples/s", "best\naccuracy", "mean\nstaleness", "waiting"):
        shown.add_column(column, justify="right")
    for one in outcomes:
        shown.add_row(
            "\n".join([one.pace, *(f"  {told(move)}" for move in one.moves)]),
            f"{one.wall_s:.1f} s",
            f"{one.wall_s / outcomes[0].wall_s:.2f}",
            f"{one.samples_per_s:,.0f}",
            f"{one.best_accuracy:.1%}",
            f"{one.staleness:.2f}",
            f"{one.wait_share:.0%}",
        )
    return shown


def told(move: Move) -> str:
    """A move in a few words."""
    return f"back to {move.to} at {move.share:.0%}" if move.restored else f"{move.to} from {move.share:.0%}"


def slowed(slow: Slow) -> str:
    """Who is slow, and when."""
    when = "" if (slow.start, slow.stop) == (0.0, 1.0) else f" from {slow.start:.0%} to {slow.stop:.0%} of the work"
    return f"worker {slow.worker} is {slow.factor:g} times slower{when}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--slow", type=slow_list, default="1=3@0.33-0.66", help="as of `paceline run`: worker 1 is three times slower in the middle"
    )
    parser.add_argument(
        "--step-ms", type=float, default=30.0, help="how long a step lasts, as if each worker had a core; 0: what this machine takes"
    )
    parser.add_argument("--out", type=Path, default=Path("runs", f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"))
    args = parser.parse_args()

    who = ", ".join(map(slowed, args.slow))
    console = Console()
    if args.step_ms:
        console.print(f"each step lasts about {args.step_ms:g} ms, as if each worker had a core of its own", highlight=False)
    runs = {pace: args.out / pace.replace(":", "-") for pace in PACES}
    for pace, out in runs.items():
        console.rule(f"{pace}: {args.workers} workers, {who}", align="left")
        train(pace, out, args)
    console.print()
    title = f"MNIST digits on {args.workers} workers, {who}"
    outcomes = [outcome(pace, out) for pace, out in runs.items()]
    console.print(f"[bold]{title}[/]", highlight=False, soft_wrap=True)
    console.print(table(outcomes))
    console.print()
    for one in outcomes:
        for move in one.moves:
            console.print(f"{one.pace}, {told(move)}: {move.why}", highlight=False, soft_wrap=True)
    comparison = compare_page(list(runs.values()), args.out / "compare.html", title)
    for name, page in [("comparison", comparison), *((f"report of {pace}", out / "report.html") for pace, out in runs.items())]:
        console.print(f"{name}: {page}", highlight=False, soft_wrap=True)
    console.print(f"all decisions of hybrid: paceline why {runs['hybrid']}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
