"""Runs of the local engine that must leave nothing behind, and a disk that is soon full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from netns import namespaces
from paceline.transport.keys import write_key_file
from ranks import SILENCE_S, Ranks
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


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """Starts ranks of a script, four on two pretended hosts unless told otherwise."""
    started: list[Ranks] = []

    def start(*arguments: str, size: int = 4, on_each: int = 2, **options: Any) -> Ranks:
        started.append(Ranks(tmp_path / f"run{len(started)}", *arguments, size=size, on_each=on_each, **options))
        return started[-1]

    yield start
    for ranks in started:
        ranks.close()


@pytest.fixture
def far_apart(launched: Callable[..., Ranks], tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """Starts ranks of a script on a real host each, and returns when they have made some updates."""
    key = tmp_path / "job.key"
    write_key_file(key)
    with ExitStack() as stack:

        def start(*arguments: str, size: int = 2, **settings: str) -> Ranks:
            hosts = stack.enter_context(namespaces(size))
            settings = {"key_file": str(key), "silence": f"{SILENCE_S}s", **settings}
            ranks = launched(*arguments, size=size, on_each=1, hosts=hosts, **settings)
            ranks.wait_for_updates(3)
            return ranks

        yield start


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 320 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320k", "none", str(folder)], check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
