"""The report of one run, `report.html`: what was trained, how well, how fast, and whether every sample was counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.dash.bands import paces_keys, reasons, strip
from paceline.dash.bars import staleness_histogram, worker_bars
from paceline.dash.chart import MOST_CHARTS, Frame, Line, chart_grid, legend, line_chart, points_for
from paceline.dash.curve import Curve
from paceline.dash.digest import Digest, read_digest
from paceline.dash.figures import count, decimal, percent, seconds, size
from paceline.dash.markup import Markup, table, tag
from paceline.dash.moves import MOST_ROWS, changes_of_pace, parts_over_time
from paceline.dash.page import folded, page, section, switch, write_page
from paceline.errors import ExitCode

REPORT = "report.html"

_MOST_MARKS = 8
_STOPPED: dict[int, str] = {ExitCode.INTERRUPTED: "Interrupted.", ExitCode.TERMINATED: "Terminated."}


def write_report(run_dir: Path) -> Path:
    """Write the report of a run into its directory, whether it ended well or not.

    Raises ConfigError when `run_dir` is no run and WriteError when the page cannot be written.
    """
    digest = read_digest(run_dir)
    title = digest.script or digest.name
    parts = (*_header(digest, title), *_progress(digest), *_times(digest), *_books(digest), *_tables(digest))
    document = page(f"{title} · Paceline", *parts)
    return write_page(run_dir / REPORT, document)


def verdict(digest: Digest) -> str:
    """What the sample ledger says, in words."""
    total = sum(digest.ledger.values())
    if not total:
        return (
            "The ledger has no verdict: the samples of this run were not counted, or no epoch was finished."
            if digest.updates
            else "No sample was folded."
        )
    once, *others = (int(digest.ledger.get(key, 0)) for key in ("once", "repeated", "skipped", "undone"))
    if not any(others):
        return f"Every sample was in exactly one applied gradient of its epoch: {count(once)} of {count(total)}."
    kinds = ("in more than one applied gradient", "in none", "folded and then undone")
    told = ", ".join(f"{count(number)} {kind}" for number, kind in zip(others, kinds, strict=True) if number)
    return f"Of {count(total)} samples, counted anew in each epoch, {count(once)} were in exactly one applied gradient, {told}."


def _header(digest: Digest, title: str) -> tuple[Markup, ...]:
    crew = f"{_plural(digest.num_workers, 'worker')}, {_plural(digest.num_servers, 'server')}"
    top = tag("p", "Paceline run report", class_="eyebrow")
    told = _paces(digest)
    mode = f" · {digest.mode}" if digest.mode not in (digest.pace, told) else ""
    line = tag("p", tag("b", told), f"{mode} · {crew} · {digest.name}", class_="lead")
    return tag("header", top, tag("h1", title), line, _state(digest)), _tiles(digest)


def _paces(digest: Digest) -> str:
    names = [stretch.pace for stretch in digest.stretches] or [digest.pace or "no pace"]
    return " → ".join(names if len(names) <= 5 else [*names[:2], f"{count(len(names) - 3)} more", names[-1]])


def _state(digest: Digest) -> Markup:
    if digest.exit is None:
        return tag(
            "p",
            tag("b", "No end recorded."),
            " The run is still going on, or was killed before it could write its end.",
            class_="state open",
        )
    if digest.exit == 0:
        return tag("p", tag("b", "Finished."), f" {digest.sentence}".rstrip(), class_="state good")
    stopped = _STOPPED.get(digest.exit)
    told = stopped or f"Failed with exit code {digest.exit}."
    return tag("p", tag("b", told), f" {digest.sentence}".rstrip(), class_=f"state {'open' if stopped else 'bad'}")


def _tiles(digest: Digest) -> Markup:
    metrics = [(name, decimal(value)) for name, value in list(digest.final.items())[:3]]
    tiles = [
        *((f"final {name}", shown) for name, shown in metrics),
        (digest.clock, seconds(digest.wall_s)),
        ("samples a second", decimal(digest.samples_per_s)),
        ("samples", count(digest.samples)),
        ("updates", count(digest.updates)),
        *((f"bytes {name}", size(value)) for name, value in digest.bytes.items()),
        ("start-up", seconds(digest.start_s)),
    ]
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", shown)) for name, shown in tiles), class_="tiles")


def _plural(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _progress(digest: Digest) -> tuple[Markup, ...]:
    curves = [curve for curve in [*digest.curves, digest.rate] if len(curve)]
    if not curves:
        missing = tag("p", "The script logged nothing, and too few updates were made for a curve.", class_="empty")
        return section("Progress", missing), *_moves(digest, Frame(digest.wall_s, digest.samples, clock=digest.clock))
    shown = curves[:MOST_CHARTS]
    most = points_for(len(shown))
    lines = [Line(curve.name, curve.points(most), curve.is_smoothed, from_zero=curve is digest.rate) for curve in shown]
    points = [point for line in lines for point in line.points]
    band = strip("", digest.stretches, {})
    strips = [band] if band else []
    frame = Frame(
        max(digest.wall_s, *(point.wall_s for point in points)),
        max(digest.samples, *(point.samples for point in points)),
        strips,
        digest.marks,
        digest.clock,
    )
    charts = (line_chart(line.name, [line], frame, _note(curve)) for line, curve in zip(lines, shown, strict=True))
    hidden = len(curves) - len(shown) + digest.num_left_out
    rest = tag("p", f"{_plural(hidden, 'further metric')} logged and not drawn.", class_="note") if hidden else None
    content = (
        switch(digest.clock),
        legend((), paces_keys(strips, {})),
        chart_grid(list(charts)),
        _happened(digest),
        rest,
        _silent(digest.curves),
    )
    return section("Progress", *content, reasons(strips)), *_moves(digest, frame)


def _moves(digest: Digest, frame: Frame) -> list[Markup]:
    changes = changes_of_pace(digest)
    return [*([changes] if changes else []), *parts_over_time(digest, frame)]


def _happened(digest: Digest) -> Markup | None:
    """The marks of the charts in words."""
    told = [f"{seconds(mark.wall_s)}: {mark.sentence}" for mark in digest.marks[:_MOST_MARKS]]
    more = [f"and {len(digest.marks) - _MOST_MARKS} more"] if len(digest.marks) > _MOST_MARKS else []
    return tag("p", f"▲ {'; '.join(told + more)}.", class_="note") if told else None


def _note(curve: Curve) -> str:
    notes = ["smoothed, over the range of all values" if curve.is_smoothed else ""]
    notes.append(f"{_plural(curve.num_lost, 'value')} not finite" if curve.num_lost else "")
    return "; ".join(filter(None, notes))


def _silent(curves: Sequence[Curve]) -> Markup | None:
    names = [curve.name for curve in curves if not len(curve)]
    return tag("p", f"Without one finite value: {', '.join(names)}.", class_="note") if names else None


def _times(digest: Digest) -> tuple[Markup, ...]:
    work = worker_bars(digest.work) if digest.work else tag("p", "No worker took a step.", class_="empty")
    return section("Workers: compute and wait", work, wide=len(digest.work) > 12), section("Staleness", *_staleness(digest), wide=False)


def _staleness(digest: Digest) -> tuple[Markup, ...]:
    mean, total = digest.mean_staleness, sum(digest.stalenesses.values())
    if mean is None:
        return (tag("p", "No gradient was applied.", class_="empty"),)
    shown = [
        ("mean", decimal(mean, 3)),
        *((name, decimal(digest.staleness[name])) for name in ("p50", "p99", "max") if name in digest.staleness),
    ]
    figures = tag("p", ", ".join(f"{name} {value}" for name, value in shown) + f" over {_plural(total, 'gradient')}.", class_="note")
    return staleness_histogram(digest.stalenesses), figures


def _books(digest: Digest) -> tuple[Markup, ...]:
    total = sum(digest.ledger.values())
    parts = [(key, digest.ledger[key]) for key in ("once", "repeated", "skipped", "undone") if digest.ledger.get(key)]
    bar = (
        tag("span", *(tag("i", class_=f"ledger {key}", style=f"width:{100 * value / total:.3f}%") for key, value in parts), class_="bar")
        if total
        else None
    )
    keys = tag(
        "ul", *(tag("li", tag("i", class_=f"key ledger {key}"), f"{key} {percent(value, total)}") for key, value in parts), class_="legend"
    )
    ledger = section("Samples", tag("p", verdict(digest), class_="verdict"), bar, keys, wide=False)
    return ledger, _refusals(digest)


def _tables(digest: Digest) -> tuple[Markup, ...]:
    return tuple(part for part in (_settings(digest), _members(digest)) if part is not None)


def _refusals(digest: Digest) -> Markup:
    if not digest.refusals:
        return section("Refused gradients", tag("p", "None.", class_="empty"), wide=False)
    rows = [
        (
            one.reason or "no reason",
            count(one.workers.total()),
            _workers(sorted(one.workers)),
            f"{seconds(max(0.0, one.first_s))} to {seconds(max(0.0, one.last_s))}",
        )
        for one in digest.refusals[:MOST_ROWS]
    ]
    return section(
        "Refused gradients", table(("reason", "count", "workers", "when"), rows, numeric=[1]), _more(len(digest.refusals)), wide=False
    )


def _workers(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:8])) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")


def _moment(at_s: float) -> str:
    """Before the first lease is the start, however long that took."""
    return "start" if at_s <= 0 else seconds(at_s)


def _members(digest: Digest) -> Markup | None:
    unfinished = "not recorded" if digest.exit is None else "at the end of the run"
    rows = [
        (
            f"{member.role} {member.id}",
            f"{member.host} ({member.pid})",
            _moment(member.joined_s),
            f"{_moment(member.left_s)}, {member.reason}" if member.reason else unfinished,
        )
        for member in digest.members[:MOST_ROWS]
    ]
    if not rows:
        return None
    return section(
        "Members", folded(table(("member", "host (pid)", "joined", "left"), rows), len(rows)), _more(len(digest.members)), wide=False
    )


def _settings(digest: Digest) -> Markup:
    if not digest.settings:
        return section("Settings", tag("p", "No run.toml is there.", class_="empty"), wide=False)
    return section("Settings", folded(table(("setting", "value", "from"), digest.settings[:MOST_ROWS]), len(digest.settings)), wide=False)


def _more(num_rows: int) -> Markup | None:
    return (
        tag("p", f"The first {MOST_ROWS} of {count(num_rows)}; all of them are in events.jsonl.", class_="note")
        if num_rows > MOST_ROWS
        else None
    )
