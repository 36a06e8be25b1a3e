"""The `watch` fixture: runs of the local engine that must leave nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from watched import Watched


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Starts watched runs of a script given as text; nothing of them may be left in /dev/shm."""
    runs: list[Watched] = []
    before = set(os.listdir("/dev/shm"))

    def start(text: str, *arguments: str, out: Path | None = None, **options: object) -> Watched:
        script = tmp_path / f"train{len(runs)}.py"
        script.write_text(text)
        runs.append(Watched(out or tmp_path / f"run{len(runs)}", script, *arguments, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.close()
    assert set(os.listdir("/dev/shm")) <= before
