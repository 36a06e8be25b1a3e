"""What scripts print: each line into the log of the worker that printed it, the lowest one's on the console too."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self, TextIO

from paceline.engine.local.output import MAX_LOG_BYTES
from paceline.errors import WriteError


class Prints(io.TextIOBase):
    """Takes the place of `sys.stdout` and `sys.stderr`; `who` is the worker that plays, None when it is the engine."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, folder: Path, who: Callable[[], int | None], show: Callable[[int, str], None]) -> None:
        self._folder, self._who, self._show = folder, who, show
        self._logs: dict[int, TextIO] = {}
        self._rooms: dict[int, int] = {}
        self._partial: dict[int, str] = {}
        self._kept = sys.stdout, sys.stderr

    def __enter__(self) -> Self:
        sys.stdout = sys.stderr = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        sys.stdout, sys.stderr = self._kept
        for worker, text in self._partial.items():
            if text:
                self._show(worker, text)
        failures: list[WriteError] = []
        for worker, log in self._logs.items():
            try:
                log.close()
            except OSError as error:
                failures.append(self._failure(worker, error))
        if failures and kind is None:
            raise failures[0]

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str, /) -> int:
        """Print for whoever plays. Raises WriteError when its log cannot be written."""
        worker = self._who()
        if worker is None:
            return self._kept[0].write(text)
        self.note(worker, text)
        *lines, self._partial[worker] = (self._partial.get(worker, "") + text).split("\n")
        for line in lines:
            self._show(worker, line)
        return len(text)

    def note(self, worker: int, text: str) -> None:
        """Add to a worker's log, as long as there is room in it."""
        room = self._rooms.setdefault(worker, MAX_LOG_BYTES) - len(text)
        if room < 0:
            return
        self._rooms[worker] = room
        try:
            if worker not in self._logs:
                self._logs[worker] = self._path(worker).open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
            self._logs[worker].write(text)
        except OSError as error:
            raise self._failure(worker, error) from error

    def _path(self, worker: int) -> Path:
        return self._folder / f"worker-{worker}.log"

    def _failure(self, worker: int, error: OSError) -> WriteError:
        return WriteError(f"{self._path(worker)} could not be written: {error.strerror or error}")
