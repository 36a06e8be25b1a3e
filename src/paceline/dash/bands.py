"""Bands: which pace was in force when, as stripes above and behind a chart, each with the reason for it.

A page says every reason once (`reasons`); the stripes of all its charts point to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from paceline.dash.axis import Axis
from paceline.dash.digest import Mark, Stretch
from paceline.dash.markup import Markup, embedded_json, tag

NUM_COLOURS = 6
_MOST_STRETCHES = 60
_MOST_LABELS = 24
_MOST_MARKS = 60
_VIEW = 1000


class Strip(NamedTuple):
    """The paces of one run in their colours; `first` is where its reasons begin among those of the page."""

    name: str
    stretches: Sequence[Stretch]
    colours: Mapping[str, int]
    first: int = 0


def strip(name: str, stretches: Sequence[Stretch], taken: Mapping[str, int], first: int = 0) -> Strip | None:
    """The strip of a run that moved, None of one that did not. A pace in `taken` has its colour there, the others what is free."""
    if len(stretches) < 2:
        return None
    kept = coarse(stretches, _MOST_STRETCHES)
    free = [colour for colour in range(1, NUM_COLOURS) if colour not in taken.values()] or list(range(1, NUM_COLOURS))
    others = [pace for pace in dict.fromkeys(stretch.pace for stretch in kept) if pace not in taken]
    return Strip(name, kept, dict(taken) | {pace: free[number % len(free)] for number, pace in enumerate(others)}, first)


def coarse(stretches: Sequence[Stretch], most: int) -> list[Stretch]:
    """At most `most` stretches: of more, equal parts of the time, each under the pace that filled most of it.

    >>> many = [Stretch("ab"[i % 2], i, i, i + 1, i + 1) for i in range(100)]
    >>> [(one.pace, one.stop_s, one.why) for one in coarse(many, 2)]
    [('a', 50, '50 changes of pace within this part'), ('a', 100, '49 changes of pace within this part')]
    """
    if len(stretches) <= most:
        return list(stretches)
    width = (stretches[-1].stop_s - stretches[0].start_s) / most or 1.0
    parts: dict[int, list[Stretch]] = {}
    for stretch in stretches:
        parts.setdefault(min(most - 1, int((stretch.start_s - stretches[0].start_s) / width)), []).append(stretch)
    return [_joined(part, is_last=number == max(parts)) for number, part in parts.items()]


def _joined(part: Sequence[Stretch], *, is_last: bool) -> Stretch:
    if len(part) == 1:
        return part[0]
    lengths: Counter[str] = Counter()
    for one in part:
        lengths[one.pace] += max(1, round(1e6 * (one.stop_s - one.start_s)))
    why = f"{len(part) - is_last} changes of pace within this part"
    return part[0]._replace(pace=lengths.most_common(1)[0][0], stop_s=part[-1].stop_s, stop_samples=part[-1].stop_samples, why=why)


def reasons(strips: Sequence[Strip]) -> Markup | None:
    """Why each stretch began, for the page's script; None when no run moved."""
    told = [stretch.why for one in strips for stretch in one.stretches]
    return embedded_json(told, id="reasons") if told else None


def paces_keys(strips: Sequence[Strip], named: Mapping[str, int]) -> list[Markup]:
    """For a legend: the paces' colours, without those in `named`, whose lines are in the legend already."""
    colours = {pace: colour for one in strips for pace, colour in one.colours.items() if pace not in named}
    return [tag("li", tag("i", class_=f"key pace c{colour}"), pace) for pace, colour in colours.items()]


def behind(axis: Axis, one: Strip) -> Iterator[Markup]:
    """The stripes behind the curves of the run itself."""
    for stretch in one.stretches:
        left, right = (_VIEW * axis.scale.place(end) for end in axis.ends(stretch))
        yield tag(
            "rect",
            x=f"{left:.1f}",
            y=0,
            width=f"{max(0.0, right - left):.1f}",
            height=_VIEW,
            class_=f"band c{one.colours[stretch.pace]}",
        )


def above(axis: Axis, one: Strip) -> Markup:
    """The names of the paces above their stripes, as far as there is room; every one tells itself when pointed at."""
    parts: list[Markup] = []
    for number, stretch in enumerate(one.stretches):
        start, stop = axis.ends(stretch)
        left, width = axis.scale.place(start), axis.scale.place(stop) - axis.scale.place(start)
        parts.append(
            tag(
                "span",
                stretch.pace if width > 1 / _MOST_LABELS else "",
                class_=f"c{one.colours[stretch.pace]}",
                style=f"left:{100 * left:.2f}%;width:{100 * width:.2f}%",
                data_pace=stretch.pace,
                data_why=one.first + number,
                data_tip=f"{f'{one.name} in ' if one.name else ''}{stretch.pace}, {axis.shown(start)} to {axis.shown(stop)}",
            )
        )
    whose = tag("i", class_=f"whose c{one.colours[one.name]}", data_tip=f"the paces of {one.name}") if one.name in one.colours else None
    return tag("div", whose, *parts, class_="strip", data_run=one.name or None)


def marked(axis: Axis, marks: Sequence[Mark]) -> Iterator[Markup]:
    """What happened at one moment; marks that fall on one place share a sign."""
    places: dict[int, list[Mark]] = {}
    for mark in marks:
        places.setdefault(round(_MOST_MARKS * axis.place(mark)), []).append(mark)
    for group in places.values():
        told = "; ".join(mark.sentence for mark in group[:3]) + (f"; {len(group) - 3} more" if len(group) > 3 else "")
        tip = f"{axis.shown(axis.of(group[0]))}: {told}"
        kind = "mark restored" if any(mark.is_restore for mark in group) else "mark"
        yield tag("span", class_=kind, style=f"left:{100 * axis.place(group[0]):.2f}%", data_tip=tip, role="note", aria_label=tip)
