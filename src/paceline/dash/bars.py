"""Bars: each worker's time split into compute and wait, and the histogram of stalenesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paceline.dash.digest import Work
from paceline.dash.figures import Scale, count, percent, seconds, value_scale
from paceline.dash.markup import Markup, tag

_MOST_ROWS = 96
_MOST_COLUMNS = 32


def worker_bars(work: Sequence[Work]) -> Markup:
    """A row for each worker; of very many only the first ones, and what the others did together."""
    longest = max((one.compute_s + one.wait_s for one in work), default=0.0) or 1.0
    rows = [_row(one, longest) for one in work[:_MOST_ROWS]]
    rest = work[_MOST_ROWS:]
    told = (
        f"{len(rest)} further workers: {count(sum(one.samples for one in rest))} samples in {count(sum(one.steps for one in rest))} steps."
    )
    keys = tag("ul", tag("li", tag("i", class_="key compute"), "compute"), tag("li", tag("i", class_="key wait"), "wait"), class_="legend")
    bars = tag("div", *rows, class_=f"workers {'few' if len(work) <= 6 else 'many' if len(work) > 12 else ''}".rstrip())
    return tag("div", keys, bars, tag("p", told, class_="note") if rest else None)


def _row(one: Work, longest: float) -> Markup:
    total = one.compute_s + one.wait_s
    tip = (
        f"worker {one.worker}: {seconds(one.compute_s)} compute, {seconds(one.wait_s)} wait ({percent(one.wait_s, total)}), "
        f"{count(one.samples)} samples in {count(one.steps)} steps"
    )
    parts = (("compute", one.compute_s), ("wait", one.wait_s))
    bar = tag("span", *(tag("i", class_=kind, style=f"width:{100 * value / longest:.2f}%") for kind, value in parts), class_="bar")
    done = f"{count(one.samples)} samples" if one.samples else f"{count(one.steps)} steps"
    figures = tag("span", f"waits {percent(one.wait_s, total)} · {done}" if total else done, class_="figures")
    return tag("div", tag("span", str(one.worker), class_="who"), bar, figures, class_="row", data_tip=tip, role="img", aria_label=tip)


class Column(NamedTuple):
    """Stalenesses `first` to `last` and how many gradients had one of them."""

    first: int
    last: int
    times: int

    @property
    def label(self) -> str:
        """What stands below the column."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def columns(counts: Mapping[int, int]) -> list[Column]:
    """The histogram's columns: a staleness each, or equal ranges of them when there are very many.

    >>> columns({0: 5, 2: 1})
    [Column(first=0, last=0, times=5), Column(first=1, last=1, times=0), Column(first=2, last=2, times=1)]
    """
    if not counts:
        return []
    width = -(-(max(counts) + 1) // _MOST_COLUMNS)
    sums = [0] * (max(counts) // width + 1)
    for tau, times in counts.items():
        sums[tau // width] += times
    return [Column(index * width, (index + 1) * width - 1, times) for index, times in enumerate(sums)]


def staleness_histogram(counts: Mapping[int, int]) -> Markup:
    """Shares of the folded gradients by the staleness they were applied with."""
    total = sum(counts.values())
    bins = columns(counts)
    height = Scale(0.0, value_scale([0.0, *(100 * column.times / total for column in bins)]).high)
    ticks = height.ticks(4)
    levels = (tag("span", f"{tick.label} %", style=f"bottom:{100 * tick.place:.2f}%") for tick in ticks)
    lines = (tag("i", style=f"bottom:{100 * tick.place:.2f}%") for tick in ticks)
    bars = (
        tag(
            "b",
            tag("u", style=f"height:{100 * height.place(100 * column.times / total):.2f}%"),
            data_tip=f"staleness {column.label}: {count(column.times)} gradients, {percent(column.times, total)}",
        )
        for column in bins
    )
    every = -(-len(bins) // 12)
    names = (tag("span", column.label if index % every == 0 else "") for index, column in enumerate(bins))
    told = "Shares of gradients by staleness. " + ", ".join(f"{column.label}: {percent(column.times, total)}" for column in bins)
    return tag(
        "div",
        tag("div", *levels, class_="levels", aria_hidden="true"),
        tag("div", *lines, *bars, class_="plot columns", role="img", aria_label=told),
        tag("div", *names, class_="places even", aria_hidden="true"),
        tag("div", "staleness: updates between a worker's read and the apply of its gradient", class_="axis-title"),
        class_="axes",
    )
