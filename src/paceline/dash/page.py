"""The frame of a page: one file that loads nothing from anywhere and runs no script but its own."""

from __future__ import annotations

import os
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from paceline.dash.markup import Content, Markup, tag
from paceline.errors import WriteError

_STYLE = Path(__file__).with_name("page.css")
_SCRIPT = Path(__file__).with_name("page.js")
_MOST_OPEN = 24


def page(title: str, *sections: Content) -> Markup:
    """A whole document. The policy in its head lets no other script run and nothing be loaded."""
    script = Markup(_SCRIPT.read_text(encoding="utf-8"))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_STYLE.read_text(encoding="utf-8"))),
    )
    body = tag("body", tag("main", *_switches(), *sections), tag("div", id="tip", role="status", hidden=True), tag("script", script))
    return Markup(f"<!doctype html>\n{tag('html', head, body, lang='en')}\n")


def section(title: str, *content: Content, wide: bool = True) -> Markup:
    """A part of a page under its heading."""
    return tag("section", tag("h2", title), *content, class_="wide" if wide else None)


def folded(content: Markup, num_rows: int) -> Markup:
    """A table, which is shut until it is asked for when it is long."""
    return content if num_rows <= _MOST_OPEN else tag("details", tag("summary", f"{num_rows} rows"), content)


def switch(clock: str = "wall time") -> Markup:
    """The choice between the two axes, for all charts of the page; it works without the script."""
    return tag("span", tag("label", clock, for_="by-wall"), tag("label", "samples", for_="by-samples"), class_="switch")


def _switches() -> tuple[Markup, Markup]:
    """The state of `switch`, before everything that it changes."""
    wall = tag("input", type="radio", name="axis", id="by-wall", checked=True, aria_label="charts against time")
    clock = tag("input", type="radio", name="axis", id="by-samples", aria_label="charts against samples")
    return wall, clock


def write_page(path: Path, document: Markup) -> Path:
    """Write a page whole or not at all. Raises WriteError, naming the file and the reason."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(document, encoding="utf-8", errors="replace")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise WriteError(f"{path} could not be written: {error.strerror or error}") from error
    return path
