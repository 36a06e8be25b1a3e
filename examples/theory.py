"""What papers say of paces, beside what the same roles do here in virtual time: staleness, time per update, test error.

`python examples/theory.py --out docs/images` writes the numbers (theory.json) and the pictures of docs/theory.md and prints its
tables. About half an hour of one core, nearly all of it the third part; runs that `--runs` has already are not done again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import msgspec

from paceline.dash.figures import Scale
from paceline.engine.virtual.cluster_file import loaded_of
from paceline.engine.virtual.timing import simulate
from paceline.engine.virtual.trainee import workload
from paceline.pace import parse_pace
from paceline.roles.effects import JobSettings
from panels import Panel, Point, Series, write_panels
from trials import Trial, summaries, table

HERE = Path(__file__).parent
LEARNERS, BATCH = 30, 4
WARM_UP = 3
"""Steps of each learner that are left out: all begin at once, which is no steady state."""
CLUSTERS = {"normal": HERE / "learners.toml", "exponential": HERE / "learners-exponential.toml"}
PARTS = (1, 15, 30)
STALENESS_STEPS = {"normal": 200, "exponential": 700}
"""Of each learner; what varies more is measured for longer."""
MEANS = {1: 0.97, 15: 14.50, 30: 29.00}
TAILS = {1: 0.081, 15: 0.125, 30: 0.126}
"""The mean staleness, and the share beyond 2n with exponential steps: of a simulation that the publication was measured again with."""

WORKERS, QUORUMS = 8, (1, 2, 4, 8)
UNINTERRUPTED = {1: 0.403, 2: 0.635, 4: 1.03, 8: 2.72}
"""Time per update of `ksync` when steps cannot be cancelled, measured again in the same way."""

NUMBERS = (1, 2, 15, 30)
RULES = {
    "sync": "sync",
    "unmodified": "softsync:{n},weighting=none,lr_rule=none",
    "parts": "softsync:{n},weighting=none",
    "staleness": "softsync:{n}",
    "exponential": "softsync:{n}",
}
MEANINGS = {
    "sync": "eta0",
    "unmodified": "eta0",
    "parts": "eta0 / n",
    "staleness": "eta0 / max(tau, n - 1)",
    "exponential": "the same, exponential steps",
}
PUBLISHED = {
    "sync": ("0.016 to 0.024", "", "", ""),
    "unmodified": ("0.018 to 0.024", "0.020 to 0.024", "0.638 to 0.888", "0.770 to 0.908"),
    "staleness": ("0.016 to 0.024",) * 4,
}


# --- R1: staleness ----------------------------------------------------------------------------------------------


def stalenesses(n: int, service: str, *, steps: int | None = None) -> Counter[int]:
    """How many gradients had which staleness under n-softsync with 30 learners; no weight depends on it."""
    found: Counter[int] = Counter()

    def watch(event: dict[str, Any], _: float) -> None:
        if event["event"] == "update":
            found.update(member["staleness"] for member in event["members"] if member["step"] >= WARM_UP)

    work = workload(4, LEARNERS * (steps or STALENESS_STEPS[service]), batch=BATCH, num_workers=LEARNERS)
    settings = JobSettings(LEARNERS, 1, parse_pace(f"softsync:{n}"), patience_s=3600.0)
    outcome = simulate(settings, loaded_of(str(CLUSTERS[service])), work, watch=watch)
    if outcome.end.code:
        sys.exit(f"softsync:{n} with {service} steps: {outcome.end.sentence}")
    return found


def of_staleness(n: int, service: str) -> dict[str, Any]:
    """The figures of one histogram, and the histogram."""
    found = stalenesses(n, service)
    total = found.total()
    return {
        "n": n,
        "service": service,
        "gradients": total,
        "mean": round(sum(tau * times for tau, times in found.items()) / total, 3),
        "max": max(found),
        "beyond": round(sum(times for tau, times in found.items() if tau > 2 * n) / total, 4),
        "counts": {str(tau): found[tau] for tau in sorted(found)},
    }


# --- R2: time per update ----------------------------------------------------------------------------------------


def time_per_update(pace: str, k: int, cancel: str, *, updates: int, seed: int = 0) -> float:
    """Mean time between updates with 8 workers, whose steps are exponential with mean 1."""
    times_s: list[float] = []

    def watch(event: dict[str, Any], now_s: float) -> None:
        if event["event"] == "update":
            times_s.append(now_s)

    loaded = loaded_of(str(CLUSTERS["exponential"]))
    group = msgspec.structs.replace(loaded.cluster.workers[0], cancel=cancel)
    loaded = loaded._replace(cluster=msgspec.structs.replace(loaded.cluster, size=WORKERS, workers=(group,)))
    # enough batches for all updates, so that none of them has fewer workers to wait for than there are
    work = workload(4, (updates + WORKERS + 1) * k, batch=BATCH, num_workers=WORKERS)
    settings = JobSettings(WORKERS, 1, parse_pace(f"{pace}:{k}"), patience_s=3600.0)
    outcome = simulate(settings, loaded, work, seed=seed, watch=watch)
    if outcome.end.code:
        sys.exit(f"{pace}:{k}: {outcome.end.sentence}")
    return (times_s[updates] - times_s[0]) / updates


class Law(NamedTuple):
    """The mean time between two updates, and its deviation."""

    mean: float
    deviation: float

    def error(self, updates: int) -> float:
        """The standard error of the mean of so many."""
        return self.deviation / math.sqrt(updates)


def ksync_law(k: int) -> Law:
    """The k-th of 8 exponential times (Dutta et al. 2018): H_8 - H_(8-k)."""
    left = range(WORKERS - k + 1, WORKERS + 1)
    return Law(sum(1 / i for i in left), math.sqrt(sum(1 / i**2 for i in left)))


def kbatchasync_law(k: int) -> Law:
    """Until k of a stream with 8 arrivals in a unit of time."""
    return Law(k / WORKERS, math.sqrt(k) / WORKERS)


def of_time(k: int, updates: int) -> dict[str, Any]:
    """The times per update of all three families at one quorum."""
    told = {"k": k, "updates": updates}
    for name, pace, cancel, law in (
        ("ksync", "ksync", "at once", ksync_law(k)),
        ("kbatchasync", "kbatchasync", "at step end", kbatchasync_law(k)),
    ):
        told[name] = {
            "time": round(time_per_update(pace, k, cancel, updates=updates), 4),
            "law": round(law.mean, 4),
            "error": round(law.error(updates), 5),
        }
    told["uninterrupted"] = {"time": round(time_per_update("ksync", k, "at step end", updates=updates), 4), "published": UNINTERRUPTED[k]}
    return told


# --- R3: test error ---------------------------------------------------------------------------------------------


def of_errors(
    runs: Path, seeds: Sequence[int], given: Sequence[str], at_once: int, *, rules: Sequence[str] = tuple(RULES)
) -> list[dict[str, Any]]:
    """The test errors of the rules at all numbers, a row each; None is of a run whose numbers were not finite at last.

    `given` are arguments of the script.
    """
    rows = [{"rule": rule, "n": n, "pace": RULES[rule].format(n=n)} for rule in rules for n in ((0,) if rule == "sync" else NUMBERS)]
    trials: dict[Path, Trial] = {}
    for row in rows:
        cluster = CLUSTERS["exponential" if row["rule"] == "exponential" else "normal"]
        for seed in seeds:
            trials[_out(runs, row, seed)] = Trial(HERE / "digits.py", cluster, str(row["pace"]), seed, tuple(given))
    found = summaries(trials, at_once=at_once)
    return [{**row, "errors": [_error(found[_out(runs, row, seed)]) for seed in seeds]} for row in rows]


def _out(runs: Path, row: dict[str, Any], seed: int) -> Path:
    return runs / row["rule"] / str(row["n"]) / str(seed)


def _error(summary: dict[str, Any]) -> float | None:
    error = summary["final"].get("error")
    return None if error is None else round(error, 4)


# --- what is shown ----------------------------------------------------------------------------------------------


def staleness_table(rows: Sequence[dict[str, Any]]) -> str:
    """R1."""
    shown: list[list[str]] = []
    for row in rows:
        n, told = row["n"], row["service"] == "exponential"
        tail, published = f"{row['beyond']:.1%}", f"{TAILS[n]:.1%}" if told else "0"
        shown.append([f"`softsync:{n}`", row["service"], f"{row['mean']:.2f}", f"{MEANS[n]:.2f}", str(row["max"]), tail, published])
    return table(("pace", "steps", "mean", "published", "maximum", "beyond 2n", "published"), shown)


def time_table(rows: Sequence[dict[str, Any]]) -> str:
    """R2."""
    shown: list[list[str]] = []
    for row in rows:
        sync, free, whole = row["ksync"], row["kbatchasync"], row["uninterrupted"]
        errors = [f"{abs(one['time'] - one['law']) / one['error']:.1f}" for one in (sync, free)]
        first = [str(row["k"]), f"{sync['time']:.4f}", f"{sync['law']:.4f}", errors[0]]
        shown.append([*first, f"{free['time']:.4f}", f"{free['law']:.4f}", errors[1], f"{whole['time']:.3f}", f"{whole['published']:.3f}"])
    head = ("k", "`ksync:k`", "formula", "apart", "`kbatchasync:k`", "formula", "apart", "`ksync:k`, not cancelled", "published")
    return table(head, shown)


def error_table(rows: Sequence[dict[str, Any]]) -> str:
    """R3: a row for each rule, a column for each n."""
    shown = {rule: [MEANINGS[rule], f"`{RULES[rule].replace('{n}', 'n')}`"] for rule in RULES}
    for row in rows:
        shown[row["rule"]].append(_range(row["errors"]))
    shown["sync"] += ["", "", ""]
    lines: list[Sequence[str]] = []
    for rule, line in shown.items():
        lines += [line, *([("", "*published*", *PUBLISHED[rule])] if rule in PUBLISHED else [])]
    return table(("learning rate", "pace", *(f"n = {n}" for n in NUMBERS)), lines)


def _range(errors: Sequence[float | None]) -> str:
    known = [error for error in errors if error is not None]
    lost = len(errors) - len(known)
    parts = [f"{min(known):.3f} to {max(known):.3f}"] if known else []
    return ", ".join([*parts, *([f"{lost} of {len(errors)} not finite"] if lost else [])])


def staleness_panels(rows: Sequence[dict[str, Any]]) -> list[Panel]:
    """The histograms, with n and 2n."""
    panels: list[Panel] = []
    for row in rows:
        n, most = row["n"], max(5, 4 * row["n"] if row["service"] == "exponential" else 2 * row["n"] + 5)
        points = [Point(int(tau), times / row["gradients"]) for tau, times in row["counts"].items() if int(tau) <= most]
        top = 1.15 * max(point.y for point in points)
        series = Series("share of the gradients", points, int(row["service"] == "exponential"), bars=True)
        title = f"softsync:{n}, {row['service']} steps"
        upright = ((MEANS[n], "published mean"), (2 * n + 0.5, "2n"))
        panels.append(Panel(title, Scale(-0.9, most + 0.9), Scale(0.0, top), "staleness", (series,), upright=upright))
    return panels


def time_panels(rows: Sequence[dict[str, Any]]) -> list[Panel]:
    """Measured dots on the lines of the formulas."""
    at, places = {k: index for index, k in enumerate(QUORUMS)}, [(index, str(k)) for index, k in enumerate(QUORUMS)]

    def panel(title: str, of: Callable[[dict[str, Any]], dict[str, Any]], law: str) -> Panel:
        measured = Series("measured", [Point(at[row["k"]], of(row)["time"]) for row in rows], 0)
        told = Series("published", [Point(at[row["k"]], of(row)[law]) for row in rows], 1, dots=False, joined=True)
        return Panel(title, Scale(-0.4, len(QUORUMS) - 0.6), Scale(0.08, 4.0, log=True), "k", (told, measured), places)

    return [
        panel("ksync:k, cancelled at once", lambda row: row["ksync"], "law"),
        panel("kbatchasync:k", lambda row: row["kbatchasync"], "law"),
        panel("ksync:k, not cancelled", lambda row: row["uninterrupted"], "published"),
    ]


def error_panels(rows: Sequence[dict[str, Any]]) -> list[Panel]:
    """The mean test error of each rule against n, with the range of the seeds; what is not finite stands at 1."""
    at, places = {n: index for index, n in enumerate(NUMBERS)}, [(index, str(n)) for index, n in enumerate(NUMBERS)]
    sync = mean(next(row["errors"] for row in rows if row["rule"] == "sync"))
    line = Series("sync", [Point(-0.4, sync), Point(len(NUMBERS) - 0.6, sync)], 3, dots=False, joined=True)

    def series(rule: str, name: str, colour: int, aside: float) -> Series:
        points: list[Point] = []
        for row in (row for row in rows if row["rule"] == rule):
            errors = [1.0 if error is None else error for error in row["errors"]]
            points.append(Point(at[row["n"]] + aside, mean(errors), min(errors), max(errors)))
        return Series(name, points, colour)

    def panel(title: str, *drawn: Series) -> Panel:
        x, y = Scale(-0.5, len(NUMBERS) - 0.5), Scale(0.008, 1.2, log=True)
        return Panel(title, x, y, "n of softsync:n", (line, *drawn), places)

    normal = [series(rule, MEANINGS[rule], colour, 0.12 * (colour - 1)) for colour, rule in ((1, "unmodified"), (2, "parts"))]
    ours = MEANINGS["staleness"]
    return [
        panel("test error, normal steps", *normal, series("staleness", ours, 0, -0.12)),
        panel("test error, exponential steps", series("exponential", ours, 0, 0.0)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs", "theory"), help="where theory.json and the pictures go")
    parser.add_argument("--runs", type=Path, default=Path("runs", "theory"), help="where the runs of the third part are, or go")
    parser.add_argument("--updates", type=int, default=20_000, help="of each time per update")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from --seed on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=4, help="of each worker, in the third part")
    parser.add_argument("--lr", type=float, default=0.1, help="eta0 of the third part")
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    given = ("--epochs", str(args.epochs), "--batch-size", str(args.batch_size), "--lr", str(args.lr))

    result = {
        "staleness": [of_staleness(n, service) for service in CLUSTERS for n in PARTS],
        "time": [of_time(k, args.updates) for k in QUORUMS],
        "error": of_errors(args.runs, range(args.seed, args.seed + args.seeds), given, args.at_once),
    }
    (args.out / "theory.json").write_text(json.dumps(result, indent=1) + "\n")
    write_panels(args.out / "theory-staleness.svg", staleness_panels(result["staleness"]), columns=3, title="Staleness of n-softsync")
    write_panels(args.out / "theory-time.svg", time_panels(result["time"]), columns=3, title="Time per update")
    write_panels(args.out / "theory-error.svg", error_panels(result["error"]), columns=2, title="Test error against n")
    for shown in (staleness_table(result["staleness"]), time_table(result["time"]), error_table(result["error"])):
        print(shown, end="\n\n")


if __name__ == "__main__":
    main()
