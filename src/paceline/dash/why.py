"""Why a run moved its pace, on the console: its story, or one decision with all that it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from paceline.logic.sentence import written
from paceline.trace.why import Decided, InForce, Story, Told, moment

MOST_WORKERS = 64


def times(count: int) -> str:
    """How often, in words.

    >>> times(1), times(2), times(1200)
    ('once', 'twice', '1,200 times')
    """
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def tell_story(console: Console, story: Story) -> None:
    """The moves in order, each with its reason; then what was held back."""
    moves = f"the pace changed {times(len(story.moves))}" if story.moves else "the pace never changed"
    restored = f", {story.num_restored:,} of them a move taken back" if story.num_restored else ""
    _line(console, f"policy {story.policy}, asked {times(story.num_asked)}: {moves}{restored}")
    for move in story.moves:
        console.print()
        _tell(console, move)
    for count, what in ((story.num_leads, "leads of workers were set"), (story.num_shares, "shares of the batch were moved")):
        if count:
            _line(console, f"\n{what} {times(count)}")
    for held in story.held:
        what = "the pace stayed" if held.last.next is None else f"a move to {held.last.next} was held back"
        _line(console, f"\n{what} {times(held.times)}, the last {moment(held.last)}")
        _inside(console, held.last.held)


def tell_decision(console: Console, found: InForce) -> None:
    """One evaluation of the policy, and the change before it."""
    one = found.decision
    _line(console, f"decision {one.number:,} of policy {one.policy}, {moment(one)}, after update {one.version:,}")
    for line in _outcome(one):
        _inside(console, line)
    console.print()
    if found.change is None:
        _line(console, f"{one.pace} was in force from the beginning")
    else:
        _tell(console, found.change)
    _table(console, "the numbers of the sentence", ("input", "value"), [(name, _shown(value)) for name, value in one.inputs.items()])
    _table(console, "the paces that were weighed", ("pace", "samples/s", "worth", "product", "staleness"), _weighed(one))
    _table(console, "leads that it set", ("worker", "lead"), [(str(worker), str(lead)) for worker, lead in one.leads])
    _table(console, "shares that it set", ("worker", "share"), [(str(worker), _shown(part)) for worker, part in one.shares])
    _signals(console, one.signals)


def _outcome(one: Decided) -> Iterator[str]:
    yield one.why
    if one.held:
        yield f"held back: {one.held}"
    elif one.moved:
        yield f"so the pace became {one.next}"


def _weighed(one: Decided) -> list[tuple[str, ...]]:
    return [
        (weighed.pace, *map(_shown, (weighed.samples_per_s, weighed.efficiency, weighed.goodput, weighed.staleness)))
        for weighed in one.candidates
    ]


def _signals(console: Console, signals: Mapping[str, Any]) -> None:
    plain = [(name, _shown(value)) for name, value in signals.items() if not isinstance(value, list | dict)]
    _table(console, "what was measured", ("signal", "value"), plain)
    listed = signals.get("workers")
    workers = [worker for worker in listed if isinstance(worker, dict)] if isinstance(listed, list) else []
    names = [name for name, value in workers[0].items() if not isinstance(value, list)] if workers else []
    rows = [tuple(_shown(worker.get(name)) for name in names) for worker in workers[:MOST_WORKERS]]
    more = f", the first {MOST_WORKERS} of {len(workers):,}" if len(workers) > MOST_WORKERS else ""
    _table(console, f"the workers{more}", names, rows)


def _shown(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return written(value)
        case None:
            return "-"
        case _:
            return str(value)


def _tell(console: Console, move: Told) -> None:
    _line(console, move.head)
    for line in (move.why, move.rates):
        if line:
            _inside(console, line)


def _line(console: Console, text: str) -> None:
    console.print(Text(text))


def _inside(console: Console, text: str) -> None:
    console.print(Padding(Text(text), (0, 0, 0, 4), expand=False))


def _table(console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[RenderableType]]) -> None:
    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(head):
        table.add_column(column, overflow="fold", justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    _line(console, f"\n{title}")
    console.print(Padding(table, (0, 0, 0, 4), expand=False))
