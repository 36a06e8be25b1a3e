"""What a run directory says, reduced to what a page shows, however long the run was and however it ended."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from paceline.dash.curve import Curve, rate_curve
from paceline.dash.decisions import Change, Decisions
from paceline.dash.history import History, Member, Refusals, Row, Setting, inner, number, words
from paceline.trace.record import each_decision, each_event, each_metrics, metrics_of, read_summary

_MOST_METRICS = 200


class Stretch(NamedTuple):
    """A part of the run under one pace, in wall time and on the sample clock, and why it began."""

    pace: str
    start_s: float
    start_samples: float
    stop_s: float
    stop_samples: float
    why: str = ""


class Mark(NamedTuple):
    """What happened at one moment in mid-run: a worker or server came or went, or an earlier state was restored."""

    wall_s: float
    samples: float
    sentence: str
    is_restore: bool = False


class Work(NamedTuple):
    """One worker's sums."""

    worker: int
    samples: int
    steps: int
    compute_s: float
    wait_s: float


class Told(NamedTuple):
    """A setting of the run and where it came from."""

    name: str
    value: str
    origin: str


class Digest(msgspec.Struct, kw_only=True):
    """A run as the pages show it. Times are seconds since the first lease, as `wall_s` counts them.

    `mode` is what the run was told to do, `pace` what it did at last. `exit` is None for a run that left no end behind;
    `num_left_out` metrics are too many to show. `shares` and `leads` are each worker's settings in order. Of a virtual
    run all times are virtual ones.
    """

    name: str
    script: str
    mode: str
    pace: str
    num_workers: int
    num_servers: int
    is_virtual: bool
    wall_s: float
    start_s: float
    samples: int
    updates: int
    exit: int | None
    sentence: str
    curves: list[Curve]
    num_left_out: int
    rate: Curve
    stretches: list[Stretch]
    changes: list[Change]
    decisions: Decisions
    shares: list[Setting]
    leads: list[Setting]
    marks: list[Mark]
    members: list[Member]
    refusals: list[Refusals]
    stalenesses: dict[int, int]
    staleness: dict[str, float]
    work: list[Work]
    bytes: dict[str, float]
    ledger: dict[str, float]
    final: dict[str, float]
    settings: list[Told]

    @property
    def clock(self) -> str:
        """What its time is called."""
        return "virtual time" if self.is_virtual else "wall time"

    @property
    def samples_per_s(self) -> float:
        """Over the whole wall time; 0 when there was none."""
        return self.samples / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def mean_staleness(self) -> float | None:
        """Over all folded gradients; None when there was none."""
        total = sum(self.stalenesses.values())
        return sum(tau * times for tau, times in self.stalenesses.items()) / total if total else None


def read_digest(run_dir: Path) -> Digest:
    """The digest of a run, finished or not. Raises ConfigError when `run_dir` is no run."""
    summary, settings, history, decisions = read_summary(run_dir), _settings(run_dir), History(), Decisions()
    for event in each_event(run_dir):
        history.take(event)
    for row in each_decision(run_dir):
        decisions.take(row)
    origin_s = history.origin_s or 0.0
    exit_code = summary.get("exit", history.end.get("code"))
    is_virtual = "virtual_s" in summary
    wall_s = number(summary, "virtual_s" if is_virtual else "wall_s") or max(
        0.0, (history.times[-1] if history.times else origin_s) - origin_s
    )
    samples = int(number(summary, "samples") or (history.clock[-1] if history.clock else 0))
    curves, num_left_out = _curves(run_dir, origin_s)
    changes = decisions.changes(move._replace(at_s=move.at_s - origin_s) for move in history.moves)
    members = [_since(member, origin_s) for member in history.members]
    told = {setting.name: setting.value for setting in settings}
    pace = words(summary, "pace") or history.first_pace or told.get("pace", "")
    return Digest(
        name=run_dir.resolve().name,
        script=Path(told.get("script", "")).name,
        mode=told["pace"] if decisions.num_asked and "pace" in told else pace,
        pace=pace,
        num_workers=int(number(summary, "workers")) or history.count("worker"),
        num_servers=int(number(summary, "servers")) or history.count("server"),
        is_virtual=is_virtual,
        wall_s=wall_s,
        start_s=number(summary, "start_s") or origin_s,
        samples=samples,
        updates=len(history.times) or int(number(summary, "updates")),
        exit=exit_code if isinstance(exit_code, int) else None,
        sentence=words(history.end, "sentence"),
        curves=curves,
        num_left_out=num_left_out,
        rate=rate_curve([at - origin_s for at in history.times], history.clock),
        stretches=_stretches(changes, pace, wall_s, samples),
        changes=changes,
        decisions=decisions,
        shares=_moved(history.shares, origin_s),
        leads=_moved(history.leads, origin_s),
        marks=_marks(members, history, origin_s, wall_s),
        members=members,
        refusals=_refusals(history, origin_s),
        stalenesses=dict(history.stalenesses),
        staleness=_numbers(summary, "staleness"),
        work=_work(summary, history),
        bytes=_numbers(summary, "bytes"),
        ledger=_numbers(summary, "ledger"),
        final=_numbers(summary, "final"),
        settings=settings,
    )


def order_of(name: str) -> tuple[bool, bool, str]:
    """A key that sorts loss first, accuracy second and other metrics by name behind them."""
    return name != "loss", not name.startswith("acc"), name


def _since(member: Member, origin_s: float) -> Member:
    return member._replace(joined_s=member.joined_s - origin_s, left_s=member.left_s - origin_s if member.reason else 0.0)


def _moved(settings: list[Setting], origin_s: float) -> list[Setting]:
    return [one._replace(at_s=max(0.0, one.at_s - origin_s)) for one in settings]


def _stretches(changes: list[Change], pace: str, wall_s: float, samples: float) -> list[Stretch]:
    moves = [change.move for change in changes]
    names = [moves[0].before, *(move.after for move in moves)] if moves else [pace]
    edges = [(0.0, 0.0), *((min(max(0.0, move.at_s), wall_s), move.samples) for move in moves), (wall_s, float(samples))]
    whys = ["", *(move.why for move in moves)]
    every = zip(names, edges[:-1], edges[1:], whys, strict=True)
    return [Stretch(name, *start, *stop, why) for name, start, stop, why in every if stop[0] > start[0]]


def _marks(members: list[Member], history: History, origin_s: float, wall_s: float) -> list[Mark]:
    """Joins after the first fold, leaves before the last one, and restores."""
    marks: list[Mark] = []
    first_s = history.times[0] - origin_s if history.times else wall_s
    for member in members:
        who = f"{member.role} {member.id}"
        if first_s < member.joined_s < wall_s:
            marks.append(Mark(member.joined_s, history.samples_at(member.joined_s + origin_s), f"{who} joined"))
        if member.reason and 0 < member.left_s < wall_s:
            marks.append(Mark(member.left_s, history.samples_at(member.left_s + origin_s), f"{who} left: {member.reason}"))
    restores = [move for move in history.moves if move.undone is not None]
    marks += [Mark(move.at_s - origin_s, move.samples, f"restored: {move.why}", is_restore=True) for move in restores]
    return sorted(marks)


def _refusals(history: History, origin_s: float) -> list[Refusals]:
    shifted = (one._replace(first_s=one.first_s - origin_s, last_s=one.last_s - origin_s) for one in history.refusals.values())
    return sorted(shifted, key=lambda one: (-one.workers.total(), one.reason))


def _work(summary: Row, history: History) -> list[Work]:
    """Every worker's sums: the summary's, or without one the steps that the events show."""
    told = inner(summary, "per_worker")
    if not told:
        return [Work(worker, 0, steps, 0.0, 0.0) for worker, steps in sorted(history.folded.items())]
    rows = ((int(worker), inner(told, worker)) for worker in told if worker.isdecimal())
    return sorted(
        Work(worker, int(number(row, "samples")), int(number(row, "steps")), number(row, "compute_s"), number(row, "wait_s"))
        for worker, row in rows
    )


def _numbers(summary: Row, key: str) -> dict[str, float]:
    return {name: value for name, value in inner(summary, key).items() if isinstance(value, int | float)}


def _curves(run_dir: Path, origin_s: float) -> tuple[list[Curve], int]:
    curves: dict[str, Curve] = {}
    left_out: set[str] = set()
    for row in each_metrics(run_dir):
        at_s, samples, weight = max(0.0, number(row, "t_s") - origin_s), number(row, "samples"), number(row, "weight") or 1.0
        for name, value in metrics_of(row).items():
            if name in curves or len(curves) < _MOST_METRICS:
                curves.setdefault(name, Curve(name)).add(at_s, samples, value, weight)
            elif len(left_out) < _MOST_METRICS:
                left_out.add(name)
    return sorted(curves.values(), key=lambda curve: order_of(curve.name)), len(left_out)


def _settings(run_dir: Path) -> list[Told]:
    """The rows of run.toml; none when it is not there or not readable, which a report does not end for."""
    try:
        written = tomllib.loads((run_dir / "run.toml").read_text(encoding="utf-8", errors="replace"))
    except (FileNotFoundError, tomllib.TOMLDecodeError):
        return []
    origins, run = inner(written, "origin"), inner(written, "run")
    rows = {name: value for name, value in (run | written).items() if not isinstance(value, dict)}
    return [Told(name, _shown(value), words(origins, name)) for name, value in rows.items()]


def _shown(value: object) -> str:
    return " ".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)
