"""Several runs on one page: their metrics as lines over the same axes, and their figures side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from paceline.dash.bands import NUM_COLOURS, Strip, paces_keys, reasons, strip
from paceline.dash.chart import MOST_CHARTS, Frame, Line, chart_grid, legend, line_chart, points_for
from paceline.dash.curve import Curve
from paceline.dash.digest import Digest, order_of, read_digest
from paceline.dash.figures import count, decimal, seconds
from paceline.dash.markup import Content, Markup, table, tag
from paceline.dash.moves import changes_of_pace
from paceline.dash.page import page, section, switch, write_page
from paceline.dash.report import verdict
from paceline.errors import ConfigError

_MOST_STRIPS = 4


def compare_page(runs: Sequence[Path], out: Path, title: str) -> Path:
    """Write the comparison of `runs` to the file `out`; the first one is what the others' times are compared with.

    Raises ConfigError when there is no run or one of them is none, and WriteError when the page cannot be written.
    """
    if not runs:
        raise ConfigError("a comparison needs at least one run, got none")
    digests = [read_digest(run) for run in runs]
    names = _names(digests)
    crew = ", ".join(dict.fromkeys(digest.script or digest.name for digest in digests))
    header = tag(
        "header",
        tag("p", "Paceline comparison", class_="eyebrow"),
        tag("h1", title),
        tag("p", f"{len(runs)} runs of {crew}", class_="lead"),
    )
    figures = section("Figures", _figures(digests, names))
    samples = section("Samples", tag("dl", *_verdicts(digests, names), class_="verdicts"))
    moves = (changes_of_pace(digest, f"Changes of pace: {name}") for digest, name in zip(digests, names, strict=True))
    return write_page(out, page(f"{title} · Paceline", header, figures, _charts(digests, names), *moves, samples))


def _names(digests: Sequence[Digest]) -> list[str]:
    """Every run by what it was told to do, with its directory where that alone would not tell it from another."""
    times = Counter(digest.mode for digest in digests)
    return [digest.mode if digest.mode and times[digest.mode] == 1 else f"{digest.mode or 'no pace'} ({digest.name})" for digest in digests]


def _charts(digests: Sequence[Digest], names: Sequence[str]) -> Markup:
    metrics = sorted({curve.name for digest in digests for curve in digest.curves if len(curve)}, key=order_of)[:MOST_CHARTS]
    if not metrics:
        return section("Progress", tag("p", "None of the runs logged anything.", class_="empty"))
    most = points_for(len(metrics) * len(digests))
    charts = [
        (metric, [_line(digest, name, number, metric, most) for number, (digest, name) in enumerate(zip(digests, names, strict=True))])
        for metric in metrics
    ]
    points = [point for _, lines in charts for line in lines for point in line.points]
    colours = {name: number % NUM_COLOURS for number, name in enumerate(names)}
    strips = _strips(digests, names, colours)
    frame = Frame(max(point.wall_s for point in points), max(point.samples for point in points), strips)
    keys = legend([Line(name, (), False, colour) for name, colour in colours.items()], paces_keys(strips, colours))
    grid = chart_grid([line_chart(metric, lines, frame, _note(lines)) for metric, lines in charts])
    return section("Progress", switch(), keys, grid, reasons(strips))


def _strips(digests: Sequence[Digest], names: Sequence[str], colours: dict[str, int]) -> list[Strip]:
    """The paces of the first few runs that moved; a pace that a run kept to has that run's colour."""
    strips: list[Strip] = []
    for digest, name in zip(digests, names, strict=True):
        made = strip(name, digest.stretches, colours, sum(len(one.stretches) for one in strips))
        if made is not None and len(strips) < _MOST_STRIPS:
            strips.append(made)
    return strips


def _line(digest: Digest, name: str, number: int, metric: str, most: int) -> Line:
    curve = next((curve for curve in digest.curves if curve.name == metric), Curve(metric))
    return Line(name, curve.points(most), curve.is_smoothed, number % NUM_COLOURS)


def _note(lines: Sequence[Line]) -> str:
    return "smoothed" if any(line.smoothed for line in lines) else ""


def _figures(digests: Sequence[Digest], names: Sequence[str]) -> Markup:
    finals = sorted({name for digest in digests for name in digest.final}, key=order_of)[:4]
    head = [
        "run",
        *(f"final {name}" for name in finals),
        "wall time",
        "relative time",
        "samples a second",
        "updates",
        "mean staleness",
        "refused",
        "exit",
    ]
    rows = [_row(digest, name, finals, digests[0].wall_s) for digest, name in zip(digests, names, strict=True)]
    return table(head, rows, numeric=range(1, len(head)))


def _row(digest: Digest, name: str, finals: Sequence[str], first_s: float) -> list[Content]:
    return [
        name,
        *(decimal(digest.final[metric]) if metric in digest.final else "" for metric in finals),
        seconds(digest.wall_s),
        f"{digest.wall_s / first_s:.2f}" if first_s else "",
        decimal(digest.samples_per_s),
        count(digest.updates),
        "" if digest.mean_staleness is None else decimal(digest.mean_staleness, 3),
        count(sum(one.workers.total() for one in digest.refusals)),
        "none recorded" if digest.exit is None else str(digest.exit),
    ]


def _verdicts(digests: Sequence[Digest], names: Sequence[str]) -> list[Markup]:
    return [tag("div", tag("dt", name), tag("dd", verdict(digest))) for digest, name in zip(digests, names, strict=True)]
