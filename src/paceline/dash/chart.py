"""Line charts of metrics: SVG that stretches with the page under text that does not, once over time and once over samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.dash.curve import Point
from paceline.dash.digest import Mark, Stretch
from paceline.dash.figures import Scale, Tick, count, decimal, seconds, time_unit, value_scale
from paceline.dash.markup import Markup, embedded_json, join, tag

NUM_COLOURS = 6
MOST_CHARTS = 24
_MOST_POINTS = 400
_ALL_POINTS = 4800
_VIEW = 1000
_MARGIN = 1.015
_DOTS_TO = 40
_MOST_MARKS = 60
_MOST_LABELS = 24


class Line(NamedTuple):
    """One run's values; with `smoothed` the points' extremes are the raw values around the line.

    `from_zero`: only the proportion to zero says something, as with a rate.
    """

    name: str
    points: Sequence[Point]
    smoothed: bool
    colour: int = 0
    from_zero: bool = False


class Frame(NamedTuple):
    """What the charts of one page share: how far the axes reach, and what happened in the run."""

    wall_s: float
    samples: float
    stretches: Sequence[Stretch] = ()
    marks: Sequence[Mark] = ()


class _Axis(NamedTuple):
    """One horizontal axis: which of a point's two places it takes."""

    kind: str
    title: str
    scale: Scale

    def of(self, point: Point | Mark) -> float:
        """Where a point lies on this axis."""
        return point.wall_s if self.kind == "wall" else point.samples

    def ends(self, stretch: Stretch) -> tuple[float, float]:
        """Where a stretch begins and ends on this axis."""
        return (stretch.start_s, stretch.stop_s) if self.kind == "wall" else (stretch.start_samples, stretch.stop_samples)

    def shown(self, value: float) -> str:
        """A place of this axis in words."""
        return seconds(value) if self.kind == "wall" else f"{count(value)} samples"


def line_chart(title: str, lines: Sequence[Line], frame: Frame, note: str = "") -> Markup:
    """A figure with `title` and its lines, of which at least one has a point."""
    every = [point for line in lines for point in line.points]
    unit_s, unit = time_unit(frame.wall_s)
    wall = _Axis("wall", f"wall time ({unit})", Scale(0.0, _MARGIN * frame.wall_s or 1.0, unit=unit_s))
    clock = _Axis("samples", "samples", Scale(0.0, _MARGIN * frame.samples or 1.0))
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


def legend(lines: Sequence[Line]) -> Markup:
    """The names of several lines beside their colour and stroke."""
    return tag("ul", *(tag("li", _swatch(line.colour), line.name) for line in lines), class_="legend")


def _swatch(colour: int) -> Markup:
    stroke = tag("line", x1=0, y1=5, x2=26, y2=5, class_=f"line c{colour}")
    return tag("svg", stroke, viewBox="0 0 26 10", class_="swatch", aria_hidden="true")


def _height(points: Sequence[Point], *, from_zero: bool) -> Scale:
    """A vertical axis for nearly all values: the outermost hundredth may be cut off when there are many."""
    lows, highs = sorted(point.low for point in points), sorted(point.high for point in points)
    cut = len(points) // 100
    means = [point.value for point in points]
    return value_scale([lows[cut], highs[-1 - cut], min(means), max(means)] + [0.0] * from_zero)


def _axes(title: str, lines: Sequence[Line], axis: _Axis, height: Scale, frame: Frame) -> Markup:
    levels = height.ticks(5)
    grid = (tag("line", x1=0, x2=_VIEW, y1=_y(tick.place), y2=_y(tick.place), class_="grid") for tick in levels)
    picture = tag(
        "svg",
        *_bands(axis, frame.stretches),
        *grid,
        *(_drawn(line, axis, height, alone=len(lines) == 1) for line in lines),
        viewBox=f"0 0 {_VIEW} {_VIEW}",
        preserveAspectRatio="none",
        role="img",
        aria_label=_told(title, lines, axis),
    )
    plot = tag("div", picture, *_marked(axis, frame.marks), class_="plot", tabindex=0)
    data = embedded_json(_data(lines, axis, height))
    strip = _strip(axis, frame.stretches)
    return tag(
        "div",
        strip,
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
    )


def _places(ticks: Sequence[Tick]) -> Iterator[Markup]:
    for tick in ticks:
        yield tag("span", tick.label, style=f"left:{100 * tick.place:.2f}%")


def _x(place: float) -> str:
    return f"{_VIEW * place:.1f}".removesuffix(".0")


def _y(place: float) -> str:
    return f"{_VIEW * (1 - min(1.0, max(0.0, place))):.1f}".removesuffix(".0")


def _drawn(line: Line, axis: _Axis, height: Scale, *, alone: bool) -> Markup:
    """A line, and if it is smoothed and alone the range of the raw values behind it."""
    places = [(_x(axis.scale.place(axis.of(point))), point) for point in line.points]
    parts: list[Markup] = []
    if line.smoothed and alone:
        upper = [f"{x} {_y(height.place(point.high))}" for x, point in places]
        lower = [f"{x} {_y(height.place(point.low))}" for x, point in places]
        parts.append(tag("path", d=f"M{'L'.join(upper + lower[::-1])}Z", class_=f"range c{line.colour}"))
    middle = [f"{x} {_y(height.place(point.value))}" for x, point in places]
    if middle:
        parts.append(tag("path", d=f"M{'L'.join(middle)}", class_=f"line c{line.colour}"))
    if len(middle) <= _DOTS_TO:
        parts.append(tag("path", d="".join(f"M{place}h0" for place in middle), class_=f"dots c{line.colour}"))
    return join(parts)


def _colours(stretches: Sequence[Stretch]) -> dict[str, int]:
    """Every pace its colour, by first appearance; the first colour is the line's."""
    names = dict.fromkeys(stretch.pace for stretch in stretches)
    return {name: 1 + number % (NUM_COLOURS - 1) for number, name in enumerate(names)}


def _bands(axis: _Axis, stretches: Sequence[Stretch]) -> Iterator[Markup]:
    if len(stretches) > 1:
        colours = _colours(stretches)
        for stretch in stretches:
            left, right = (axis.scale.place(end) for end in axis.ends(stretch))
            yield tag("rect", x=_x(left), y=0, width=_x(max(0.0, right - left)), height=_VIEW, class_=f"band c{colours[stretch.pace]}")


def _strip(axis: _Axis, stretches: Sequence[Stretch]) -> Markup | None:
    """The names of the paces above their bands, as far as there is room; every one tells itself when pointed at."""
    if len(stretches) < 2:
        return None
    colours = _colours(stretches)
    parts: list[Markup] = []
    for stretch in stretches:
        start, stop = axis.ends(stretch)
        left, width = axis.scale.place(start), axis.scale.place(stop) - axis.scale.place(start)
        parts.append(
            tag(
                "span",
                stretch.pace if width > 1 / _MOST_LABELS else "",
                class_=f"c{colours[stretch.pace]}",
                style=f"left:{100 * left:.2f}%;width:{100 * width:.2f}%",
                data_tip=f"{stretch.pace}: {axis.shown(start)} to {axis.shown(stop)}",
            )
        )
    return tag("div", *parts, class_="strip")


def _marked(axis: _Axis, marks: Sequence[Mark]) -> Iterator[Markup]:
    """Joins and leaves; those that fall on one place share a mark."""
    places: dict[int, list[Mark]] = {}
    for mark in marks:
        places.setdefault(round(_MOST_MARKS * axis.scale.place(axis.of(mark))), []).append(mark)
    for group in places.values():
        told = "; ".join(mark.sentence for mark in group[:3]) + (f"; {len(group) - 3} more" if len(group) > 3 else "")
        tip = f"{axis.shown(axis.of(group[0]))}: {told}"
        yield tag(
            "span", class_="mark", style=f"left:{100 * axis.scale.place(axis.of(group[0])):.2f}%", data_tip=tip, role="note", aria_label=tip
        )


def _told(title: str, lines: Sequence[Line], axis: _Axis) -> str:
    """The chart in words, for those who do not see it."""
    told = [
        f"{line.name}: {decimal(line.points[0].value)} at first, {decimal(line.points[-1].value)} at {axis.shown(axis.of(line.points[-1]))}"
        for line in lines
        if line.points
    ]
    return f"{title} against {axis.title}. {'. '.join(told)}."


def _data(lines: Sequence[Line], axis: _Axis, height: Scale) -> dict[str, object]:
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
