"""Line charts of metrics: SVG that stretches with the page under text that does not, once over time and once over samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.dash.axis import Axis
from paceline.dash.bands import Strip, above, behind, marked
from paceline.dash.curve import Point
from paceline.dash.digest import Mark
from paceline.dash.figures import Scale, Tick, decimal, time_unit, value_scale
from paceline.dash.markup import Markup, embedded_json, join, tag

MOST_CHARTS = 24
_MOST_POINTS = 400
_ALL_POINTS = 4800
_VIEW = 1000
_MARGIN = 1.015
_DOTS_TO = 40
_LABEL_PX, _LABEL_MARGIN_PX = 7, 10


class Line(NamedTuple):
    """One run's values; with `smoothed` the points' extremes are the raw values around the line.

    `from_zero`: only the proportion to zero says something, as with a rate. `dotted`: few points are shown one by one.
    """

    name: str
    points: Sequence[Point]
    smoothed: bool
    colour: int = 0
    from_zero: bool = False
    dotted: bool = True


class Frame(NamedTuple):
    """What the charts of one page share: how far the axes reach, and what happened in the runs.

    The stripes of a nameless strip, the page's only run, lie behind its curves too. `clock` is what time is called.
    """

    wall_s: float
    samples: float
    strips: Sequence[Strip] = ()
    marks: Sequence[Mark] = ()
    clock: str = "wall time"


def line_chart(title: str, lines: Sequence[Line], frame: Frame, note: str = "") -> Markup:
    """A figure with `title` and its lines, of which at least one has a point."""
    every = [point for line in lines for point in line.points]
    unit_s, unit = time_unit(frame.wall_s)
    wall = Axis("wall", f"{frame.clock} ({unit})", Scale(0.0, _MARGIN * frame.wall_s or 1.0, unit=unit_s))
    clock = Axis("samples", "samples", Scale(0.0, _MARGIN * frame.samples or 1.0))
    height = _height(every, from_zero=any(line.from_zero for line in lines))
    heading = tag("figcaption", tag("h3", title), tag("span", note, class_="note"))
    return tag("figure", heading, *(_axes(title, lines, axis, height, frame) for axis in (wall, clock)), class_="chart")


def points_for(num_lines: int) -> int:
    """How many points each of a page's lines may have, so that the page stays below about a megabyte."""
    return max(20, min(_MOST_POINTS, _ALL_POINTS // num_lines))


def chart_grid(charts: Sequence[Markup]) -> Markup:
    """Charts side by side, in rows that they fill if they can."""
    columns = 2 if len(charts) == 4 else min(3, len(charts))
    return tag("div", *charts, class_=f"charts in-{columns}")


def legend(lines: Sequence[Line], others: Sequence[Markup] = ()) -> Markup | None:
    """The names of several lines beside their colour and stroke, and other keys behind them; None when there is none."""
    keys = [*(tag("li", _swatch(line.colour), line.name) for line in lines), *others]
    return tag("ul", *keys, class_="legend") if keys else None


def _swatch(colour: int) -> Markup:
    stroke = tag("line", x1=0, y1=5, x2=26, y2=5, class_=f"line c{colour}")
    return tag("svg", stroke, viewBox="0 0 26 10", class_="swatch", aria_hidden="true")


def _height(points: Sequence[Point], *, from_zero: bool) -> Scale:
    """A vertical axis for nearly all values: the outermost hundredth may be cut off when there are many."""
    lows, highs = sorted(point.low for point in points), sorted(point.high for point in points)
    cut = len(points) // 100
    means = [point.value for point in points]
    return value_scale([lows[cut], highs[-1 - cut], min(means), max(means)] + [0.0] * from_zero)


def _axes(title: str, lines: Sequence[Line], axis: Axis, height: Scale, frame: Frame) -> Markup:
    levels = height.ticks(5)
    grid = (tag("line", x1=0, x2=_VIEW, y1=_y(tick.place), y2=_y(tick.place), class_="grid") for tick in levels)
    picture = tag(
        "svg",
        *(band for one in frame.strips if not one.name for band in behind(axis, one)),
        *grid,
        *(_drawn(line, axis, height, alone=len(lines) == 1) for line in lines),
        viewBox=f"0 0 {_VIEW} {_VIEW}",
        preserveAspectRatio="none",
        role="img",
        aria_label=_told(title, lines, axis),
    )
    plot = tag("div", picture, *marked(axis, frame.marks), class_="plot", tabindex=0)
    data = embedded_json(_data(lines, axis, height))
    strips = tag("div", *(above(axis, one) for one in frame.strips), class_="strips") if frame.strips else None
    room = _LABEL_PX * max((len(tick.label) for tick in levels), default=0) + _LABEL_MARGIN_PX
    return tag(
        "div",
        strips,
        tag(
            "div",
            *(tag("span", tick.label, style=f"bottom:{100 * tick.place:.2f}%") for tick in levels),
            class_="levels",
            aria_hidden="true",
        ),
        plot,
        tag("div", *_places(axis.scale.ticks(6)), class_="places", aria_hidden="true"),
        tag("div", axis.title, class_="axis-title"),
        data,
        class_=f"axes by-{axis.kind}",
        style=f"--labels:{room}px",
    )


def _places(ticks: Sequence[Tick]) -> Iterator[Markup]:
    for tick in ticks:
        yield tag("span", tick.label, style=f"left:{100 * tick.place:.2f}%")


def _x(place: float) -> str:
    return f"{_VIEW * place:.1f}".removesuffix(".0")


def _y(place: float) -> str:
    return f"{_VIEW * (1 - min(1.0, max(0.0, place))):.1f}".removesuffix(".0")


def _drawn(line: Line, axis: Axis, height: Scale, *, alone: bool) -> Markup:
    """A line, and if it is smoothed and alone the range of the raw values behind it."""
    places = [(_x(axis.place(point)), point) for point in line.points]
    parts: list[Markup] = []
    if line.smoothed and alone:
        upper = [f"{x} {_y(height.place(point.high))}" for x, point in places]
        lower = [f"{x} {_y(height.place(point.low))}" for x, point in places]
        parts.append(tag("path", d=f"M{'L'.join(upper + lower[::-1])}Z", class_=f"range c{line.colour}"))
    middle = [f"{x} {_y(height.place(point.value))}" for x, point in places]
    if middle:
        parts.append(tag("path", d=f"M{'L'.join(middle)}", class_=f"line c{line.colour}"))
    if line.dotted and len(middle) <= _DOTS_TO:
        parts.append(tag("path", d="".join(f"M{place}h0" for place in middle), class_=f"dots c{line.colour}"))
    return join(parts)


def _told(title: str, lines: Sequence[Line], axis: Axis) -> str:
    """The chart in words, for those who do not see it."""
    told = [
        f"{line.name}: {decimal(line.points[0].value)} at first, {decimal(line.points[-1].value)} at {axis.shown(axis.of(line.points[-1]))}"
        for line in lines
        if line.points
    ]
    return f"{title} against {axis.title}. {'. '.join(told)}."


def _data(lines: Sequence[Line], axis: Axis, height: Scale) -> dict[str, object]:
    """What the page's script shows when a place is pointed at."""

    def brief(value: float) -> float:
        return float(f"{value:.5g}")

    return {
        "unit": axis.kind,
        "x": [axis.scale.low, axis.scale.high],
        "y": [height.low, height.high],
        "log": height.log,
        "lines": [
            {
                "name": line.name,
                "colour": line.colour,
                "x": [brief(axis.of(point)) for point in line.points],
                "y": [brief(point.value) for point in line.points],
                "range": [[brief(point.low), brief(point.high)] for point in line.points] if line.smoothed else [],
            }
            for line in lines
        ],
    }
