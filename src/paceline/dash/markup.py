"""HTML by construction: every text is escaped unless it is already `Markup`, so no name of a user can become a tag."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import msgspec

_VOID = frozenset({"meta", "input", "path", "rect", "line", "circle", "br"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | int | None


def text(content: Content) -> Markup:
    """`content` as HTML; None is nothing."""
    if content is None:
        return Markup()
    return content if isinstance(content, Markup) else Markup(escape(str(content)))


def join(parts: Iterable[Content]) -> Markup:
    """The parts one after another."""
    return Markup("".join(map(text, parts)))


def tag(name: str, /, *children: Content, **attributes: object) -> Markup:
    """An element; `class_` is class, `data_x` is data-x, an attribute of None or False is left out, of True bare.

    >>> tag("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    written: list[str] = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        written.append(f" {shown}" if value is True else f' {shown}="{escape(str(value))}"')
    opening = f"<{name}{''.join(written)}"
    return Markup(f"{opening}/>" if name in _VOID else f"{opening}>{join(children)}</{name}>")


def table(head: Iterable[Content], rows: Iterable[Iterable[Content]], *, numeric: Iterable[int] = ()) -> Markup:
    """A table; the columns in `numeric` are aligned to the right."""
    right = frozenset(numeric)

    def cells(kind: str, row: Iterable[Content]) -> Markup:
        scope = "col" if kind == "th" else None
        return tag("tr", *(tag(kind, cell, scope=scope, class_="number" if column in right else None) for column, cell in enumerate(row)))

    body = tag("tbody", *(cells("td", row) for row in rows))
    return tag("div", tag("table", tag("thead", cells("th", head)), body), class_="scroll")


def embedded_json(value: object, **attributes: object) -> Markup:
    """Data for the page's script; `<` and `&` are written as escapes, so that the data cannot end its element."""
    data = msgspec.json.encode(value).decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return tag("script", Markup(data), type="application/json", **attributes)
