"""What ended a run, told once: an exception as the script's author wants to see it, and which of several failures is the cause."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import NamedTuple

import paceline
from paceline.errors import ExitCode, PacelineError
from paceline.messages import Address, Failed

_OURS = str(Path(paceline.__file__).parent)
MOST_CHARACTERS = 400
"""Of an exception's own words in a sentence; the log has all of them."""


def failed_of(error: BaseException, who: Address, script: str) -> Failed:
    """What `who` reports about an exception that its script has let through.

    Our own errors are one sentence and the script's line; others keep their traceback, without our frames around it.
    """
    shown = traceback.TracebackException.from_exception(error)
    if isinstance(error, PacelineError):
        theirs = [frame for frame in shown.stack if not _is_ours(frame)]
        line = next((frame for frame in reversed(theirs) if not _is_installed(frame)), theirs[-1] if theirs else None)
        where = "" if line is None else f" ({_short(line.filename, script)}, line {line.lineno}: {line.line})"
        said = str(error) if str(error).startswith(f"{who} ") else f"{who}: {error}"
        return Failed(error.exit_code, f"{said}{where}")
    _trim(shown)
    said = "".join(shown.format_exception_only()).strip().splitlines()
    # a SyntaxError shows the place first; of others the first line has the kind, and notes may follow
    line = shorten(said[-1] if _is_syntax(shown) else said[0], MOST_CHARACTERS)
    return Failed(ExitCode.SCRIPT_FAILED, f"{who}: {script} raised {line}", "".join(shown.format()))


def shorten(text: str, most: int) -> str:
    """The text, cut off where it is longer than `most` characters.

    >>> shorten("abcdefgh", 8), shorten("abcdefghi", 8)
    ('abcdefgh', 'abcde...')
    """
    return text if len(text) <= most else text[: most - 3] + "..."


def _is_syntax(shown: traceback.TracebackException) -> bool:
    return issubclass(shown.exc_type or Exception, SyntaxError)


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith((_OURS, "<frozen runpy>", "<frozen importlib"))


def _is_installed(frame: traceback.FrameSummary) -> bool:
    return "site-packages" in Path(frame.filename).parts


def _short(filename: str, script: str) -> str:
    return script if Path(filename).resolve() == Path(script).resolve() else filename


def _trim(shown: traceback.TracebackException) -> None:
    """Drop our frames, here and in what led to it; an error that began in our own code keeps what is below the script."""
    frames = list(shown.stack)
    first = next((index for index, frame in enumerate(frames) if not _is_ours(frame)), 0)
    kept = frames[first:]
    # Python raises a SyntaxError in whoever compiles the file, and itself shows the line that is meant
    if kept and (_is_syntax(shown) or not _is_ours(kept[-1])):
        kept = [frame for frame in kept if not _is_ours(frame)]
    shown.stack = traceback.StackSummary.from_list(kept)
    for earlier in (shown.__cause__, shown.__context__):
        if earlier is not None:
            _trim(earlier)


class Failure(NamedTuple):
    """Something that can have ended the run. The lowest `rank` is the cause; among equals, one with a traceback, then the first."""

    rank: int
    code: int
    sentence: str
    text: str = ""


SIGNALLED, REPORTED, LATE, DIED, LEFT_ALONE, UNEXPLAINED = range(6)


def failure_of(failed: Failed) -> Failure:
    """A process's own report: that a peer was lost is seldom the cause, a deadline rather is, anything else surely."""
    rank = {ExitCode.PEER_LOST: LEFT_ALONE, ExitCode.DEADLINE_PASSED: LATE}.get(ExitCode(failed.code), REPORTED)
    return Failure(rank, failed.code, failed.sentence, failed.text)


def cause_of(failures: list[Failure]) -> Failure | None:
    """The failure to tell the user about."""
    return min(failures, key=lambda failure: (failure.rank, not failure.text), default=None)
