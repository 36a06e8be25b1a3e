"""What the user sees while a run goes on: one worker's lines, the state of the run, and at the end what came of it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from paceline.messages import Progress

PLAIN_EVERY_S = 5.0
RATE_OVER_S = 5.0
_MOST_NAMED = 4
_MOST_SHARES = 8


def progress_text(progress: Progress, rate: float, num_workers: int) -> str:
    """The state of a run in one line; `rate` is in samples per second."""
    if not progress.begun:
        return f"starting: {progress.num_workers} of {num_workers} workers are there"
    samples = (
        f"{progress.epoch_folded:,} of {progress.epoch_samples:,} samples" if progress.epoch_samples else f"{progress.samples:,} samples"
    )
    parts = [progress.pace, f"epoch {progress.epoch}", samples]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    parts += [f"{rate:,.0f} samples/s", f"staleness {progress.staleness:.2f}"]
    if progress.shares:
        parts.append(f"shares {shares_text([part for _, part in progress.shares])} %")
    if progress.waiting_for:
        named = ", ".join(map(str, progress.waiting_for[:_MOST_NAMED]))
        more = len(progress.waiting_for) - _MOST_NAMED
        parts.append(f"waits for worker {named}" + (f" and {more} more" if more > 0 else ""))
    return " · ".join(parts)


def shares_text(parts: Sequence[float]) -> str:
    """The parts of a batch in percent, by worker; of many only the smallest and the largest.

    >>> shares_text([2.0, 2.0, 1.0]), shares_text([0.1] * 19 + [0.01])
    ('40 40 20', '0.5 to 5.2')
    """
    whole = sum(parts) or 1.0
    shares = [100.0 * part / whole for part in parts]
    if len(shares) > _MOST_SHARES:
        return f"{min(shares):.1f} to {max(shares):.1f}"
    return " ".join(f"{share:.0f}" for share in shares)


class Screen:
    """The console: a line that is redrawn on a terminal, plain lines now and then where there is none."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._out = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._err = Console(file=sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._live: Live | None = None
        self._history: deque[tuple[float, int]] = deque()
        self._plain_due_s = 0.0
        self._shown = ""

    def line(self, text: str) -> None:
        """A line of its own."""
        self._print(self._out, text)

    def error(self, text: str) -> None:
        """A line about what went wrong; while a line is redrawn, both share the terminal and must not mix."""
        self._print(self._err if self._live is None else self._out, text)

    def _print(self, console: Console, text: str) -> None:
        try:
            console.print(Text(text.rstrip("\n")))
            console.file.flush()
        except OSError:
            # whoever read this has gone away; the run goes on for its directory
            console.quiet = True

    def progress(self, progress: Progress, now_s: float) -> None:
        """Show the state of the run, if it is time to."""
        rate = self._rate(progress.samples, now_s) if progress.begun else 0.0
        text = progress_text(progress, rate, self._num_workers)
        if self._out.is_terminal:
            self._redraw(text)
        elif now_s >= self._plain_due_s and text != self._shown:
            self._plain_due_s, self._shown = now_s + PLAIN_EVERY_S, text
            self.line(text)

    def _rate(self, samples: int, now_s: float) -> float:
        self._history.append((now_s, samples))
        while now_s - self._history[0][0] > RATE_OVER_S:
            self._history.popleft()
        since_s, before = self._history[0]
        return (samples - before) / (now_s - since_s) if now_s > since_s else 0.0

    def _redraw(self, text: str) -> None:
        try:
            if self._live is None:
                self._live = Live(console=self._out, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        except OSError:
            self._out.quiet = True

    def clear(self) -> None:
        """Take the redrawn line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None
