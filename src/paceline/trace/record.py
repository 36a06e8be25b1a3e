"""The run directory's record: events.jsonl, metrics.jsonl, decisions.jsonl and summary.json, written and read back.

Lines are gathered in memory and written whole, at most `FLUSH_S` later; a write that fails is a WriteError, never
a silent loss. A reader takes a file as a crash left it: its last line may be torn.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from paceline.errors import ConfigError, WriteError

EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
DECISIONS = "decisions.jsonl"
SUMMARY = "summary.json"

FLUSH_S = 0.15
_FLUSH_BYTES = 1 << 18
_RESERVED_BYTES = 1 << 14
_RESERVED = ".summary.json.part"

_encoder = msgspec.json.Encoder()
_METRIC_FIELDS = ("worker", "t_s", "samples", "epoch", "weight")


class _Lines:
    """A file that only grows, a JSON object a line.

    What could not be written stays pending, so that a later try goes on in the middle of the line where it stopped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending = bytearray()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise ConfigError(f"{path.parent} already holds a run ({path.name} is there); choose a directory of its own") from None
        except OSError as error:
            raise _unwritten(path, error) from error

    @property
    def pending_bytes(self) -> int:
        """How much waits to be written."""
        return len(self._pending)

    def add(self, row: Mapping[str, object]) -> None:
        """Append a line to what is pending."""
        _encoder.encode_into(row, self._pending, -1)
        self._pending += b"\n"

    def flush(self) -> None:
        """Write everything that is pending. Raises WriteError, also when the file is not in its place any more."""
        if self._pending and not self._is_in_place():
            raise WriteError(f"{self._path} could not be written: it was deleted, moved or replaced while the run went on")
        try:
            while self._pending:
                written = os.write(self._fd, self._pending)
                del self._pending[:written]
        except OSError as error:
            raise _unwritten(self._path, error) from error

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the file; what is still pending is lost."""
        os.close(self._fd)


class RunRecord:
    """Writes the record of one run into `run_dir`; times are given as readings of the clock that read `start_s`.

    Raises ConfigError when the directory already holds a run and WriteError, naming the file and the reason, when
    one of its files cannot be written.
    """

    def __init__(self, run_dir: Path, start_s: float) -> None:
        self._run_dir = run_dir
        self._start_s = start_s
        self._deadline_s: float | None = None
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritten(run_dir, error) from error
        self._events = _Lines(run_dir / EVENTS)
        self._metrics = _Lines(run_dir / METRICS)
        self._decisions: _Lines | None = None
        _reserve_summary(run_dir)

    @property
    def deadline_s(self) -> float | None:
        """When `flush_if_due` must be called; None while nothing is pending."""
        return self._deadline_s

    def note(self, event: Mapping[str, object], now_s: float) -> None:
        """Append one event; its key `event` comes first, the time since the start, `t_s`, second."""
        if "event" not in event:
            raise ValueError(f"an event names its kind under the key 'event', got the keys {sorted(event)}")
        self._add(self._events, {"event": event["event"], "t_s": self._since_start(now_s)} | dict(event), now_s)

    def metrics(self, worker: int, metrics: Mapping[str, float], *, epoch: int, samples: int, weight: float, now_s: float) -> None:
        """Append what `worker` logged, with the samples folded by then; a name that is a field's gets a `_` behind it."""
        row: dict[str, object] = {"worker": worker, "t_s": self._since_start(now_s), "samples": samples, "epoch": epoch, "weight": weight}
        row |= {f"{name}_" if name in _METRIC_FIELDS else name: value for name, value in metrics.items()}
        self._add(self._metrics, row, now_s)

    def decide(self, record: Mapping[str, object], now_s: float) -> None:
        """Append one line about what the policy decided; only the first one makes the file."""
        if self._decisions is None:
            self._decisions = _Lines(self._run_dir / DECISIONS)
        self._add(self._decisions, {"t_s": self._since_start(now_s)} | dict(record), now_s)

    def flush_if_due(self, now_s: float) -> None:
        """Write what has been pending for `FLUSH_S`. Raises WriteError."""
        if self._deadline_s is not None and now_s >= self._deadline_s:
            self.flush()

    def flush(self) -> None:
        """Write everything that is pending. Raises WriteError."""
        for lines in self._files:
            lines.flush()
        self._deadline_s = None

    def close(self, summary: Mapping[str, object]) -> None:
        """Write what is pending and summary.json. Raises WriteError, after the summary was written if that can be."""
        try:
            self.flush()
        finally:
            for lines in self._files:
                lines.close()
            write_summary(self._run_dir, summary)

    @property
    def _files(self) -> list[_Lines]:
        return [lines for lines in (self._events, self._metrics, self._decisions) if lines is not None]

    def _since_start(self, now_s: float) -> float:
        return round(now_s - self._start_s, 6)

    def _add(self, lines: _Lines, row: Mapping[str, object], now_s: float) -> None:
        lines.add(row)
        if self._deadline_s is None:
            self._deadline_s = now_s + FLUSH_S
        if lines.pending_bytes >= _FLUSH_BYTES:
            lines.flush()


def write_summary(run_dir: Path, summary: Mapping[str, object]) -> None:
    """Write summary.json whole or not at all, also over an earlier one. Raises WriteError."""
    target, part = run_dir / SUMMARY, run_dir / _RESERVED
    data = msgspec.json.format(_encoder.encode(summary), indent=2) + b"\n"
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.ftruncate(fd, len(data))
            os.fsync(fd)
        finally:
            os.close(fd)
        part.rename(target)
    except OSError as error:
        raise _unwritten(target, error) from error


def _reserve_summary(run_dir: Path) -> None:
    """Take the summary's room on the disk now: the exit code is written even when the disk is full by then."""
    part = run_dir / _RESERVED
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, _RESERVED_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        raise _unwritten(part, error) from error


def _unwritten(path: Path, error: OSError) -> WriteError:
    return WriteError(f"{path} could not be written: {error.strerror or error}")


def _unread(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be read: {error.strerror or error}")


def each_event(run_dir: Path) -> Iterator[dict[str, object]]:
    """The events of a run one by one, in order. Raises ConfigError when `run_dir` is no run or a line is damaged."""
    _check_run(run_dir)
    return _rows(run_dir / EVENTS)


def read_events(run_dir: Path) -> list[dict[str, object]]:
    """All events of a run, in order. Raises ConfigError as `each_event`."""
    return list(each_event(run_dir))


def each_metrics(run_dir: Path) -> Iterator[dict[str, object]]:
    """What the script logged, line by line; a value that was not finite reads as nan. Raises ConfigError as `each_event`."""
    _check_run(run_dir)
    return ({name: math.nan if value is None else value for name, value in row.items()} for row in _rows(run_dir / METRICS))


def read_metrics(run_dir: Path) -> list[dict[str, object]]:
    """All that the script logged, in order. Raises ConfigError as `each_event`."""
    return list(each_metrics(run_dir))


def metrics_of(row: Mapping[str, object]) -> dict[str, float]:
    """The logged values of one row of metrics.jsonl, without the record's own fields."""
    return {name: value for name, value in row.items() if name not in _METRIC_FIELDS and isinstance(value, int | float)}


def each_decision(run_dir: Path) -> Iterator[dict[str, object]]:
    """What a run's policy decided, line by line; nothing for a run without one. Raises ConfigError as `each_event`."""
    _check_run(run_dir)
    return _rows(run_dir / DECISIONS)


def read_summary(run_dir: Path) -> dict[str, object]:
    """The summary of a run; empty when the run ended without one. Raises ConfigError as `each_event`."""
    _check_run(run_dir)
    try:
        data = (run_dir / SUMMARY).read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unread(run_dir / SUMMARY, error) from None
    try:
        return msgspec.json.decode(data, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{run_dir / SUMMARY} is damaged: {error}") from None


def _check_run(run_dir: Path) -> None:
    if not any(os.path.isfile(run_dir / name) for name in (EVENTS, METRICS, SUMMARY)):
        state = "is no directory" if os.path.exists(run_dir) else "does not exist"
        state = "holds none of " + ", ".join((EVENTS, METRICS, SUMMARY)) if os.path.isdir(run_dir) else state
        raise ConfigError(f"{run_dir} is not the directory of a run: it {state}")


def _rows(path: Path) -> Iterator[dict[str, object]]:
    decoder = msgspec.json.Decoder(dict[str, object])
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unread(path, error) from None
    with file:
        for number, line in enumerate(file, start=1):
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                if not line.endswith(b"\n"):
                    return
                raise ConfigError(f"{path}, line {number}, is damaged: {error}") from None
