"""Sync-Switch (Li et al. 2021) on MNIST: how much of the work in `sync` at the start buys how much accuracy, for how much time.

`python examples/sync_switch.py` plays 8 virtual workers over shares of sync and both orders, some seeds each; about five minutes of one
core. It writes sync-switch.json and a picture and prints the table of docs/theory.md; runs that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from paceline.dash.figures import Scale
from paceline.trace.record import read_metrics
from panels import Panel, Point, Series, write_panels
from trials import Trial, summaries, table

HERE = Path(__file__).parent
SHARES = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
ASYNC = "async,weighting=none"
"""Without a weighting, a change to it divides the batch and the learning rate by the number of workers together."""
LAST = "last"
"""The other order: three quarters in async, then sync."""
PUBLISHED = {
    "0": ("0.892", "1,559"),
    "0.05": ("0.917 ± 0.006", "2,055"),
    "0.1": ("0.914 ± 0.004", "2,518"),
    "0.25": ("0.919 ± 0.005", "3,870"),
    "0.5": ("0.920", "6,000"),
    "1": ("0.920 ± 0.006", "10,532"),
    LAST: ("0.900", "3,719"),
}
"""ResNet-32 on CIFAR-10 with 8 workers: accuracy and seconds."""


def paces() -> dict[str, str]:
    """By share of sync, the pace as it is typed."""
    found = {}
    for share in SHARES:
        found[f"{share:g}"] = {0.0: ASYNC, 1.0: "sync"}.get(share, f"hybrid:sync@0,{ASYNC}@{share:g}")
    return {**found, LAST: f"hybrid:{ASYNC}@0,sync@0.75"}


def measured(runs: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each pace: the seeds' accuracies, at last and by epoch, the virtual time, and that on the line between sync and async."""
    script, cluster = HERE / "mnist.py", HERE / "eight.toml"
    given = ("--epochs", str(args.epochs), "--batch-size", str(args.batch_size), "--lr", str(args.lr), "--momentum", "0.9")
    seeds = range(args.seed, args.seed + args.seeds)
    trials = {runs / name / str(seed): Trial(script, cluster, pace, seed, given) for name, pace in paces().items() for seed in seeds}
    found = summaries(trials, at_once=args.at_once)
    rows: list[dict[str, Any]] = []
    for name, pace in paces().items():
        ended = [found[runs / name / str(seed)] for seed in seeds]
        epochs = [accuracies_of(runs / name / str(seed)) for seed in seeds]
        time_s = round(mean(one["virtual_s"] for one in ended), 2)
        rows.append({"share": name, "pace": pace, "accuracies": [one[-1] for one in epochs], "epochs": epochs, "virtual_s": time_s})
    times_s = {row["share"]: row["virtual_s"] for row in rows}
    for row in rows:
        share = 0.25 if row["share"] == LAST else float(row["share"])
        row["line_s"] = round(share * times_s["1"] + (1 - share) * times_s["0"], 2)
    return rows


def accuracies_of(out: Path) -> list[float]:
    """A run's accuracy after each epoch."""
    return [round(row["accuracy"], 4) for row in read_metrics(out) if "accuracy" in row]


def spread(values: Sequence[float]) -> str:
    """Mean and deviation."""
    return f"{mean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def share_table(rows: Sequence[dict[str, Any]]) -> str:
    """What came of each share, beside what was published."""
    shown: list[list[str]] = []
    for row in rows:
        name = "25 %, at the end" if row["share"] == LAST else f"{float(row['share']):.0%}".replace("%", " %")
        apart = f"{(row['virtual_s'] / row['line_s'] - 1):+.1%}".replace("%", " %")
        told = [name, f"`{row['pace']}`", spread(row["accuracies"]), f"{row['virtual_s']:.1f}", apart]
        shown.append([*told, *PUBLISHED[row["share"]]])
    return table(("sync", "pace", "accuracy", "virtual s", "from the line", "published accuracy", "published s"), shown)


def share_panels(rows: Sequence[dict[str, Any]]) -> list[Panel]:
    """Accuracy and time against the share of sync."""
    first = [row for row in rows if row["share"] != LAST]
    last = next(row for row in rows if row["share"] == LAST)
    x, places = Scale(-0.05, 1.05), [(share, f"{share:.0%}") for share in (0.0, 0.25, 0.5, 1.0)]

    def scored(row: dict[str, Any], share: float) -> Point:
        return Point(share, mean(row["accuracies"]), min(row["accuracies"]), max(row["accuracies"]))

    accuracies = [value for row in rows for value in row["accuracies"]]
    times_s = [row["virtual_s"] for row in rows]
    ends = [Point(float(row["share"]), row["line_s"]) for row in first]
    return [
        Panel(
            "accuracy",
            x,
            Scale(min(accuracies) - 0.01, max(accuracies) + 0.01),
            "share of sync",
            (
                Series("sync first", [scored(row, float(row["share"])) for row in first], 0, joined=True),
                Series("async first", [scored(last, 0.25)], 1),
            ),
            places,
        ),
        Panel(
            "virtual time (s)",
            x,
            Scale(0.0, 1.1 * max(times_s)),
            "share of sync",
            (
                Series("on a line between async and sync", ends, 2, dots=False, joined=True),
                Series("sync first", [Point(float(row["share"]), row["virtual_s"]) for row in first], 0),
                Series("async first", [Point(0.25, last["virtual_s"])], 1),
            ),
            places,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs", "sync-switch"), help="where sync-switch.json and the picture go")
    parser.add_argument("--runs", type=Path, default=Path("runs", "sync-switch"), help="where the runs are, or go")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from --seed on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16, help="of each worker")
    parser.add_argument("--lr", type=float, default=0.0125, help="of sync; async has an eighth of it")
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    rows = measured(args.runs, args)
    (args.out / "sync-switch.json").write_text(json.dumps(rows, indent=1) + "\n")
    write_panels(args.out / "sync-switch.svg", share_panels(rows), columns=2, title="Share of sync against accuracy and time")
    print(share_table(rows))


if __name__ == "__main__":
    main()
