"""The report's part on how the run moved: every change of pace with its reason, what it was expected to bring, and parts by worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from paceline.dash.bands import NUM_COLOURS
from paceline.dash.chart import Frame, Line, legend, line_chart
from paceline.dash.curve import Point
from paceline.dash.decisions import Change, Decisions, Weighed
from paceline.dash.digest import Digest
from paceline.dash.figures import count, decimal, percent, seconds
from paceline.dash.history import Setting
from paceline.dash.markup import Content, Markup, join, table, tag
from paceline.dash.page import folded, section

MOST_ROWS = 100
_MOST_WEIGHED = 8
_MOST_CORNERS = 150


def changes_of_pace(digest: Digest, title: str = "Changes of pace") -> Markup | None:
    """The table of all moves and a line on the policy's decisions; None for a run that had neither."""
    asked = _asked(digest.decisions, len(digest.changes))
    if not digest.changes:
        return section(title, tag("p", asked, class_="empty")) if asked else None
    changes = digest.changes[:MOST_ROWS]
    has_rates = any(change.predicted or change.came for change in changes)
    left_out = (
        f"The first {MOST_ROWS} of {count(len(digest.changes))}; all of them are in events.jsonl." if digest.changes[MOST_ROWS:] else ""
    )
    notes = " ".join(filter(None, ("Predicted and came are samples a second." if has_rates else "", asked, left_out)))
    columns = [column for column in _COLUMNS if column.name in _ALWAYS or any(column.cell(change) for change in changes)]
    rows = [[column.cell(change) for column in columns] for change in changes]
    numeric = [number for number, column in enumerate(columns) if column.is_number]
    shown = folded(table([digest.clock if column.name is None else column.name for column in columns], rows, numeric=numeric), len(rows))
    return section(title, tag("div", shown, class_="moves"), tag("p", notes, class_="note") if notes else None)


class _Column(NamedTuple):
    """A column by its heading, which is None for the one of times: that is the name of the run's clock."""

    name: str | None
    cell: Callable[[Change], Content]
    is_number: bool = False


def _labelled(name: str, value: str) -> Content:
    """A cell that a narrow page, which has no head above it, can say the name of."""
    return tag("span", value, class_=name) if value else ""


def _rate(name: str, value: float | None) -> Content:
    return _labelled(name, decimal(value) if value else "")


def _after(change: Change) -> Markup:
    undone = change.move.undone
    badge = None if undone is None else tag("span", f"restored, {count(undone)} samples undone", class_="badge bad")
    return join([tag("span", change.move.after, class_="pace"), badge])


def _why(change: Change) -> Markup:
    return tag("div", change.move.why, _weighed(change.weighed, change.move.after), class_="why")


def _weighed(weighed: Sequence[Weighed], chosen: str) -> Markup | None:
    """The candidates of the decision, best first, shut until they are asked for."""
    if not weighed:
        return None
    best = sorted(weighed, key=lambda one: -one.samples_per_s * one.efficiency)[:_MOST_WEIGHED]
    rows = [
        (tag("b", one.pace) if one.pace == chosen else one.pace, decimal(one.samples_per_s), f"{one.efficiency:.3f}",
         decimal(one.samples_per_s * one.efficiency)) for one in best
    ]  # fmt: skip
    head = ("pace", "samples/s", "worth of a sample", "product")
    return tag("details", tag("summary", f"{len(weighed)} paces weighed"), table(head, rows, numeric=(1, 2, 3)))


_ALWAYS = (None, "samples", "from", "to", "why")
_COLUMNS = (
    _Column(None, lambda change: seconds(max(0.0, change.move.at_s))),
    _Column("samples", lambda change: _labelled("samples", count(change.move.samples)), True),
    _Column("share", lambda change: "" if change.share is None else percent(change.share, 1.0), True),
    _Column("from", lambda change: tag("span", change.move.before, class_="pace from")),
    _Column("to", _after),
    _Column("predicted", lambda change: _rate("predicted", change.predicted), True),
    _Column("came", lambda change: _rate("came", change.came), True),
    _Column("why", _why),
)


def _asked(decisions: Decisions, num_moves: int) -> str:
    """How the policy's decisions went, in a few sentences."""
    if not decisions.num_asked:
        return ""
    times = "once" if decisions.num_asked == 1 else f"{count(decisions.num_asked)} times"
    told = [f"The policy {decisions.policy} was asked {times}"]
    if num_moves:
        told.append(f", the pace changed {'once' if num_moves == 1 else f'{count(num_moves)} times'}.")
    else:
        told.append(f", the pace never changed. It said last: {decisions.last_why.rstrip('.')}.")
    if decisions.num_held:
        held = "One decision was" if decisions.num_held == 1 else f"{count(decisions.num_held)} decisions were"
        told.append(f" {held} held back, lately: {decisions.last_held.rstrip('.')}.")
    if decisions.median_error is not None:
        over = f"{len(decisions.errors)} prediction{'s' if len(decisions.errors) > 1 else ''}"
        told.append(f" What came differed from {over} by {percent(decisions.median_error, 1.0)} (median).")
    return "".join(told)


def parts_over_time(digest: Digest, frame: Frame) -> list[Markup]:
    """A small chart of each worker's part of a batch, and one of its bound on the lead, where these changed."""
    even = 1.0 / max(1, digest.num_workers)
    charts = [
        _steps("Batch shares over time", "each worker's part of a batch", digest.shares, frame, first=even),
        _steps("Lead bounds over time", "steps that a worker may be ahead of the slowest", digest.leads, frame, first=None),
    ]
    return [chart for chart in charts if chart is not None]


def _steps(title: str, what: str, settings: Sequence[Setting], frame: Frame, *, first: float | None) -> Markup | None:
    """A line in steps for each worker, of many only for those whose value moved furthest from the first."""
    workers: dict[int, list[Setting]] = {}
    for one in settings:
        workers.setdefault(one.worker, []).append(one)
    if not workers:
        return None
    moved = sorted(workers, key=lambda worker: -max(abs(one.value - (first or 0.0)) for one in workers[worker]))[:NUM_COLOURS]
    lines = [
        Line(f"worker {worker}", _corners(workers[worker], frame, first), False, number, from_zero=True, dotted=False)
        for number, worker in enumerate(sorted(moved))
    ]
    note = f"the {len(lines)} of {len(workers)} workers that moved furthest" if len(lines) < len(workers) else ""
    return section(title, legend(lines), line_chart(what, lines, frame, note), wide=False)


def _corners(settings: Sequence[Setting], frame: Frame, first: float | None) -> list[Point]:
    """The line of one worker, thinned to what can be told apart; its last value is always there."""
    every = -(-len(settings) // _MOST_CORNERS)
    kept = settings[::-1][::every][::-1]
    value = kept[0].value if first is None else first
    corners = [(0.0, 0.0, value)]
    for one in kept:
        corners += [(one.at_s, one.samples, value), (one.at_s, one.samples, one.value)]
        value = one.value
    corners.append((frame.wall_s, frame.samples, value))
    return [Point(wall_s, samples, level, level, level) for wall_s, samples, level in corners]
