"""A plan for people: a table on the console, and a page with the metric against time, one line for each pace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.dash.bands import NUM_COLOURS
from paceline.dash.chart import Frame, Line, chart_grid, legend, line_chart
from paceline.dash.curve import Point
from paceline.dash.figures import count, decimal, percent, seconds, size
from paceline.dash.markup import Content, Markup, table, tag
from paceline.dash.page import page, section, switch, write_page
from paceline.plan.advise import advice
from paceline.plan.candidates import Candidate, Plan

CLOCK = "virtual time"
FLOWN = ["pace", "samples flown", "of", "virtual time flown", "of", "time here", "of about"]
"""The head of what was flown, beside what whole runs take."""


def tell_plan(console: Console, plan: Plan) -> None:
    """The ranking as a table, then the advice."""
    shown = Table(box=None, pad_edge=False)
    for number, column in enumerate(_head(plan)):
        shown.add_column(column, justify="left" if number == 1 else "right", no_wrap=number < 2)
    for candidate in plan.candidates:
        shown.add_row(*map(str, _row(plan, candidate)))
    console.print(shown)
    console.print()
    console.print(_flights(plan))
    for sentence in advice(plan):
        console.print()
        console.print(Text(sentence))


def write_plan_page(plan: Plan, path: Path) -> Path:
    """Write the plan as a page that needs nothing else. Raises WriteError."""
    title = f"Plan for {Path(plan.script).name} on {plan.cluster}"
    subtitle = f"{plan.num_workers} workers, {plan.num_servers} servers, {len(plan.candidates)} paces"
    header = tag("header", tag("p", "Paceline plan", class_="eyebrow"), tag("h1", title), tag("p", subtitle, class_="lead"))
    sentences = section("Advice", *(tag("p", sentence) for sentence in advice(plan)))
    rows = [[_whole(cell) for cell in _row(plan, one)] for one in plan.candidates]
    ranking = section("Ranking", table(_head(plan), rows, numeric=[0, *range(2, len(_head(plan)))]))
    flown = [list(map(_whole, _flown(plan, one))) for one in plan.candidates]
    flights = section("Flown, of the whole run", table(FLOWN, flown, numeric=range(1, len(FLOWN))))
    return write_page(path, page(f"{title} · Paceline", header, sentences, _picture(plan), ranking, flights))


def _head(plan: Plan) -> list[str]:
    target = f"to {plan.target}" if plan.target is not None else "whole run"
    return [
        *("rank", "pace", target, "between", "samples/s", "step", "waits", "bytes/step"),
        *("worker memory", "server memory", "staleness", "refused", "failures"),
    ]


def _row(plan: Plan, candidate: Candidate) -> list[Content]:
    cost = candidate.forecast
    is_tie = sum(one.rank == candidate.rank for one in plan.candidates) > 1
    return [
        f"{candidate.rank}{'=' if is_tie else ''}",
        candidate.pace,
        *_times(plan, candidate),
        decimal(cost.samples_per_s),
        seconds(cost.step_s),
        percent(cost.wait_share, 1.0),
        size(cost.step_bytes),
        size(cost.memory_worker_bytes),
        size(cost.memory_server_bytes),
        f"{cost.staleness['p50']:g}/{cost.staleness['p99']:g}",
        percent(cost.refused_share, 1.0),
        str(cost.num_lost),
    ]


def _flights(plan: Plan) -> Table:
    shown = Table(box=None, pad_edge=False)
    for number, column in enumerate(FLOWN):
        shown.add_column(column, justify="right" if number else "left", no_wrap=True)
    for candidate in plan.candidates:
        shown.add_row(*map(str, _flown(plan, candidate)))
    return shown


def _flown(plan: Plan, candidate: Candidate) -> list[Content]:
    """Pilot and run to the target beside the whole run, the mean of the seeds."""
    flown = candidate.flown
    return [
        candidate.pace,
        count(flown.samples),
        count(plan.profile.samples),
        seconds(flown.virtual_s),
        seconds(candidate.forecast.run_s),
        seconds(flown.real_s),
        seconds(flown.full_real_s),
    ]


def _whole(cell: Content) -> Markup:
    """A cell that is not broken over lines."""
    return tag("span", cell, style="white-space:nowrap")


def _times(plan: Plan, candidate: Candidate) -> tuple[str, str]:
    """The time to the target and its interval; what was predicted has a mark, and so has what needs a longer run."""
    arrival = candidate.arrival
    if plan.target is None:
        return seconds(candidate.forecast.run_s), ""
    if arrival is None:
        return "never seen", ""
    marks = "" if arrival.is_seen else " ~" if arrival.is_planned else " ~, longer run"
    return f"{seconds(arrival.time_s)}{marks}", f"{seconds(arrival.low_s)} – {seconds(arrival.high_s)}"


def _picture(plan: Plan) -> Markup:
    """Time against the metric; before the first value a line begins where the profile saw the metric."""
    drawn = [one for one in plan.candidates if len(one.points) > 1]
    if plan.target is None or not drawn:
        return section("Progress", tag("p", "The script logged nothing.", class_="empty"))
    lines = [Line(one.pace, _points(one), smoothed=False, colour=number % NUM_COLOURS) for number, one in enumerate(drawn)]
    every = [point for line in lines for point in line.points]
    frame = Frame(max(point.wall_s for point in every), max(point.samples for point in every), clock=CLOCK)
    of_seed = f"; of seed {plan.seeds[0]}" if len(plan.seeds) > 1 else ""
    chart = line_chart(plan.target.metric, lines, frame, f"the target is {plan.target}{of_seed}")
    return section("Progress", switch(CLOCK), legend(lines), chart_grid([chart]))


def _points(candidate: Candidate) -> Sequence[Point]:
    return [Point(one.t_s, one.samples, one.value, one.value, one.value) for one in candidate.points]
