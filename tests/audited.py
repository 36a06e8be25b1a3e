"""Every test is watched, and so is every program that it starts: the fixture `nothing_forbidden` fails a test that did what must not be."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from forbidden import OURS, SEEN_FILE, watch

__all__ = ["OURS", "SITE", "in_programs", "nothing_forbidden", "seen", "watched_programs"]

SITE = str(Path(__file__).parent / "site")

seen: list[str] = []


def in_programs() -> list[str]:
    """What the programs that tests have started were seen doing; forgotten with this."""
    file = Path(os.environ[SEEN_FILE])
    lines = file.read_text().splitlines()
    if lines:
        file.write_text("")
    return lines


@pytest.fixture(autouse=True, scope="session")
def watched_programs() -> Iterator[None]:
    """Let programs that tests start begin with `sitecustomize` of the tests."""
    with tempfile.NamedTemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setenv(SEEN_FILE, file.name)
        patch.setenv("PYTHONPATH", SITE, prepend=os.pathsep)
        yield


@pytest.fixture(autouse=True)
def nothing_forbidden(watched_programs: None) -> Iterator[None]:
    """Fail a test in which something forbidden happened, in whatever thread or program."""
    watch(seen.append)
    seen.clear()
    yield
    assert not seen, f"forbidden: {seen}"
    elsewhere = in_programs()
    assert not elsewhere, f"forbidden, in a program: {elsewhere}"
