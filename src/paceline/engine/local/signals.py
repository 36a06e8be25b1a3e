"""Signals as things to be read: each is noted, and wakes up whoever waits in a selector."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from types import FrameType


class Woken:
    """The readable end of what a signal writes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """For a selector."""
        return self._fd

    def drain(self) -> None:
        """Read what woke us up."""
        with suppress(BlockingIOError):
            os.read(self._fd, 4096)


@contextmanager
def noted_signals(numbers: Iterable[int], into: list[int]) -> Generator[Woken]:
    """While this lasts, signals of these `numbers` do nothing but be appended to `into`."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def note(number: int, _: FrameType | None) -> None:
        into.append(number)

    former_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # what the shell has told us to ignore (nohup, a job in the background) stays ignored
    former = {number: signal.signal(number, note) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield Woken(reader)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(former_fd)
        os.close(reader)
        os.close(writer)
