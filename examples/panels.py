"""Small charts in one SVG file that needs nothing else: what a run came to beside what was published."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.dash.figures import Scale, Tick
from paceline.dash.markup import Markup, tag

COLOURS = ("#2f6db5", "#c2571a", "#3d8b4f", "#7a5195")
WIDTH, HEIGHT = 300, 210
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 30, 40
KEY_HEIGHT = 22


class Point(NamedTuple):
    """A value at `x`, and the range around it, if there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Series(NamedTuple):
    """Points of one colour: `bars` from the bottom, else dots, and a line through them with `joined`."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    bars: bool = False
    dots: bool = True
    joined: bool = False


class Panel(NamedTuple):
    """One chart. `places` are the ticks of its x axis where they are not round numbers; `upright` are lines at an x with a name."""

    title: str
    x: Scale
    y: Scale
    x_title: str
    series: Sequence[Series]
    places: Sequence[tuple[float, str]] = ()
    upright: Sequence[tuple[float, str]] = ()


def write_panels(path: Path, panels: Sequence[Panel], *, columns: int, title: str) -> None:
    """The panels in rows of `columns`, under one legend of their series."""
    names: dict[str, Series] = {}
    for panel in panels:
        for series in panel.series:
            names.setdefault(series.name, series)
    rows = math.ceil(len(panels) / columns)
    width, height = columns * WIDTH, KEY_HEIGHT + rows * HEIGHT
    drawn = [_panel(panel, number % columns * WIDTH, KEY_HEIGHT + number // columns * HEIGHT) for number, panel in enumerate(panels)]
    picture = tag(
        "svg",
        tag("title", title),
        tag("rect", width=width, height=height, fill="#ffffff"),
        _legend(list(names.values())),
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        font_family="system-ui, sans-serif",
        font_size=11,
        fill="#333333",
    )
    part = path.with_name(f".{path.name}.part")
    part.write_text(f"{picture}\n", encoding="utf-8")
    os.replace(part, path)


def _legend(series: Sequence[Series]) -> Markup:
    parts: list[Markup] = []
    x = float(LEFT)
    for one in series:
        parts += [tag("rect", x=x, y=8, width=10, height=10, fill=COLOURS[one.colour]), tag("text", one.name, x=x + 15, y=17)]
        x += 40 + 6.2 * len(one.name)
    return tag("g", *parts)


def _panel(panel: Panel, left: int, top: int) -> Markup:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    ticks = [Tick(panel.x.place(value), label) for value, label in panel.places] or panel.x.ticks(5)
    parts = [tag("text", panel.title, x=LEFT, y=20, font_weight="bold")]
    for tick in panel.y.ticks(4):
        y = _at(tick.place, bottom, TOP)
        parts.append(tag("line", x1=LEFT, x2=right, y1=y, y2=y, stroke="#dddddd"))
        parts.append(tag("text", tick.label, x=LEFT - 6, y=y + 4, text_anchor="end"))
    parts += [tag("text", tick.label, x=_at(tick.place, LEFT, right), y=bottom + 15, text_anchor="middle") for tick in ticks]
    parts.append(tag("text", panel.x_title, x=(LEFT + right) / 2, y=bottom + 32, text_anchor="middle", fill="#666666"))
    for number, (value, name) in enumerate(panel.upright):
        x = _at(panel.x.place(value), LEFT, right)
        parts.append(tag("line", x1=x, x2=x, y1=TOP, y2=bottom, stroke="#888888", stroke_dasharray="4 3"))
        parts.append(tag("text", name, x=x + 3, y=TOP + 9 + 12 * number, fill="#666666"))
    parts += [_series(panel, one) for one in panel.series]
    parts.append(tag("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, stroke="#333333"))
    return tag("g", *parts, transform=f"translate({left} {top})")


def _series(panel: Panel, series: Series) -> Markup:
    colour, bottom = COLOURS[series.colour], HEIGHT - BOTTOM

    def x_of(point: Point) -> float:
        return _at(panel.x.place(point.x), LEFT, WIDTH - RIGHT)

    def y_of(value: float) -> float:
        return _at(min(1.0, max(0.0, panel.y.place(value))), bottom, TOP)

    parts: list[Markup] = []
    if series.joined:
        way = "L".join(f"{x_of(point)} {y_of(point.y)}" for point in series.points)
        parts.append(tag("path", d=f"M{way}", fill="none", stroke=colour, stroke_width=1.5))
    for point in series.points:
        x, y = x_of(point), y_of(point.y)
        if series.bars:
            wide = max(1.0, 0.8 * (WIDTH - LEFT - RIGHT) / (panel.x.high - panel.x.low))
            parts.append(tag("rect", x=round(x - wide / 2, 1), y=y, width=round(wide, 1), height=round(bottom - y, 1), fill=colour))
            continue
        if point.low is not None and point.high is not None:
            parts.append(tag("line", x1=x, x2=x, y1=y_of(point.low), y2=y_of(point.high), stroke=colour, stroke_width=1.5))
        if series.dots:
            parts.append(tag("circle", cx=x, cy=y, r=3.5, fill=colour))
    return tag("g", *parts)


def _at(place: float, low: float, high: float) -> float:
    return round(low + place * (high - low), 1)
