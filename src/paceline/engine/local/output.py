"""What a child prints: all of it into its own log file, line by line to whoever shows it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from paceline.engine.local.blame import shorten
from paceline.errors import WriteError

MAX_LOG_BYTES = 1 << 30
MAX_LINE_BYTES = 1 << 16
READ_BYTES = 1 << 16
LAST_LINES, LAST_CHARACTERS = 3, 200
"""Of what a process has printed last, in a sentence."""


class Log:
    """The log file of one process, filled with the bytes that it prints. Raises WriteError when it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._room_bytes = MAX_LOG_BYTES
        self._partial = b""
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise self._unwritten(error) from error

    def add(self, data: bytes, *, is_last: bool = False) -> list[str]:
        """Write what has come; returns the lines that are whole now. `is_last`: nothing comes after it."""
        self._write(data)
        *lines, self._partial = (self._partial + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if self._partial and (is_last or len(self._partial) > MAX_LINE_BYTES):
            lines.append(self._partial)
            self._partial = b""
        return [line.decode(errors="replace") for line in lines]

    def note(self, text: str) -> None:
        """Add our own lines."""
        self._write(text.encode(errors="replace"))

    def _write(self, data: bytes) -> None:
        if self._room_bytes <= 0:
            return
        if len(data) > self._room_bytes:
            data = data[: self._room_bytes] + b"\n(this log is full)\n"
        self._room_bytes -= len(data)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            # one failure ends the run; the rest of what is printed is read without being kept
            self._room_bytes = 0
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> WriteError:
        return WriteError(f"{self._path} could not be written: {error.strerror or error}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Output:
    """The pipe of one child and the log file that it fills."""

    def __init__(self, pipe_fd: int, path: Path) -> None:
        self.fd = pipe_fd
        self.ended = self.dry = False
        os.set_blocking(pipe_fd, False)
        self.log = Log(path)

    def read(self) -> list[str]:
        """What has come since, as whole lines; `dry`: nothing more for now, `ended`: nothing more at all. Raises WriteError."""
        data = self.take()
        return [] if self.dry else self.log.add(data, is_last=self.ended)

    def take(self) -> bytes:
        """What has come since, as it is, past the log."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            self.dry = True
            return b""
        self.ended, self.dry = not data, False
        return data

    def drain(self, read: Callable[[], object]) -> None:
        """`read` until there is nothing more: what the pipe still holds when nobody is left who could write."""
        self.dry = False
        while not (self.ended or self.dry):
            read()

    def last_words(self) -> str:
        """What the pipe still holds of a process that has ended goes into the log; returns the last of it, "" without any."""
        lines: list[str] = []
        self.drain(lambda: lines.extend(self.read()))
        return " | ".join(shorten(line.strip(), LAST_CHARACTERS) for line in [line for line in lines if line.strip()][-LAST_LINES:])

    def note(self, text: str) -> None:
        """Add our own lines to the log."""
        self.log.note(text)

    def close(self) -> None:
        """Close the log; the pipe belongs to the process."""
        self.log.close()
