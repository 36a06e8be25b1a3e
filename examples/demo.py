"""Three paces on the same job with one slow worker: who waits, how long it takes, and what it costs in accuracy.

`make demo`. Runs `paceline run` once for each pace, prints a table and writes a page that compares the runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from paceline.dash.compare import compare_page
from paceline.settings import slow_list
from paceline.trace.record import read_metrics, read_summary

PACES = ("sync", "async", "ssp:3")
SCRIPT = Path(__file__).with_name("mnist.py")
LIMIT_S = 240.0


class Outcome(NamedTuple):
    """What a run leaves that is worth comparing."""

    pace: str
    wall_s: float
    samples_per_s: float
    best_accuracy: float
    staleness: float
    wait_share: float


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
    command += ["--seed", str(args.seed), "--out", str(out), str(SCRIPT)]
    command += ["--epochs", str(args.epochs), "--batch-size", str(args.batch_size), "--lr", str(args.lr), "--seed", str(args.seed)]
    try:
        done = subprocess.run(command, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"the run {out} took longer than {LIMIT_S:g} s and was ended")
    if done.returncode:
        sys.exit(f"the run {out} ended with code {done.returncode}; its logs are in {out / 'logs'}")


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
    )


def table(title: str, outcomes: list[Outcome]) -> Table:
    """The outcomes side by side: times relative to the first, the best accuracy, the mean staleness, the time spent waiting."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("pace")
    for column in ("wall time", "relative", "samples/s", "best accuracy", "staleness", "waiting"):
        shown.add_column(column, justify="right")
    for one in outcomes:
        shown.add_row(
            one.pace,
            f"{one.wall_s:.1f} s",
            f"{one.wall_s / outcomes[0].wall_s:.2f}",
            f"{one.samples_per_s:,.0f}",
            f"{one.best_accuracy:.1%}",
            f"{one.staleness:.2f}",
            f"{one.wait_share:.0%}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slow", type=slow_list, default="1=4", help="as of `paceline run`: worker 1 is four times slower")
    parser.add_argument("--out", type=Path, default=Path("runs", f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"))
    args = parser.parse_args()

    told = ", ".join(f"worker {slow.worker} {slow.factor:g} times slower" for slow in args.slow)
    console = Console()
    runs = {pace: args.out / pace.replace(":", "-") for pace in PACES}
    for pace, out in runs.items():
        console.rule(f"{pace}: {args.workers} workers, {told}", align="left")
        train(pace, out, args)
    console.print()
    title = f"MNIST digits on {args.workers} workers, {told}"
    console.print(table(title, [outcome(pace, out) for pace, out in runs.items()]))
    comparison = compare_page(list(runs.values()), args.out / "compare.html", title)
    for name, page in [("comparison", comparison), *((f"report of {pace}", out / "report.html") for pace, out in runs.items())]:
        console.print(f"{name}: {page}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
