"""The run directory's record: what is written is read back, and a failed write is an error that names its file."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import ConfigError, WriteError
from paceline.trace.record import (
    DECISIONS,
    EVENTS,
    FLUSH_S,
    METRICS,
    RunRecord,
    each_decision,
    metrics_of,
    read_events,
    read_metrics,
    read_summary,
    write_summary,
)


def test_events_are_read_back_in_order_with_the_kind_first_and_the_time_second(tmp_path: Path) -> None:
    record = RunRecord(tmp_path / "runs" / "one", start_s=100.0)
    record.note({"event": "join", "role": "worker", "id": 1, "pid": 7, "host": "here"}, 100.5)
    record.note({"event": "refuse", "worker": 1, "step": 4, "reason": "late"}, 101.25)
    record.close({"exit": 0})
    events = read_events(tmp_path / "runs" / "one")
    assert [list(event)[:2] for event in events] == [["event", "t_s"]] * 2
    assert [event["t_s"] for event in events] == [0.5, 1.25]
    assert events[1] == {"event": "refuse", "t_s": 1.25, "worker": 1, "step": 4, "reason": "late"}


def test_decisions_have_a_file_of_their_own_as_soon_as_there_is_one(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, start_s=100.0)
    assert not (tmp_path / DECISIONS).exists()
    record.decide({"event": "decision", "number": 1, "inputs": {"rate": 3.5, "none": math.nan}}, 100.5)
    record.decide({"event": "restore", "version": 9}, 100.75)
    assert record.deadline_s == 100.5 + FLUSH_S
    record.flush_if_due(101.0)
    assert [next(iter(row)) for row in each_decision(tmp_path)] == ["t_s"] * 2
    record.close({"exit": 0})
    assert list(each_decision(tmp_path)) == [
        {"t_s": 0.5, "event": "decision", "number": 1, "inputs": {"rate": 3.5, "none": None}},
        {"t_s": 0.75, "event": "restore", "version": 9},
    ]


def test_an_event_without_a_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="key 'event'"):
        RunRecord(tmp_path, 0.0).note({"worker": 1}, 0.0)


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_file_that_is_not_in_its_place_any_more_is_a_failed_write(tmp_path: Path, how: str) -> None:
    record = RunRecord(tmp_path / "run", 0.0)
    record.note({"event": "first"}, 0.0)
    record.flush()
    (tmp_path / "run").rename(tmp_path / "moved")
    if how == "deleted":
        shutil.rmtree(tmp_path / "moved")
    elif how == "replaced":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / EVENTS).touch()
    record.flush_if_due(9.0)
    record.note({"event": "second"}, 9.0)
    with pytest.raises(WriteError, match=rf"{EVENTS} could not be written: it was deleted, moved or replaced while the run went on$"):
        record.flush_if_due(10.0)


def test_nothing_waits_longer_than_the_flush_time(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, 0.0)
    assert record.deadline_s is None
    record.note({"event": "end", "code": 0, "sentence": "done"}, 5.0)
    record.flush_if_due(5.0 + FLUSH_S / 2)
    assert (tmp_path / EVENTS).stat().st_size == 0
    assert record.deadline_s is not None
    assert record.deadline_s - 5.0 <= 0.2
    record.flush_if_due(record.deadline_s)
    assert len(read_events(tmp_path)) == 1
    assert record.deadline_s is None


def test_a_burst_is_written_before_it_is_due_so_that_memory_stays_bounded(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, 0.0)
    for version in range(20_000):
        record.note({"event": "update", "version": version, "members": [{"worker": 0, "step": version}]}, 1.0)
    assert (tmp_path / EVENTS).stat().st_size > 1_000_000
    record.close({})
    assert [event["version"] for event in read_events(tmp_path)] == list(range(20_000))


def test_metrics_keep_values_that_are_not_finite_and_names_that_collide(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, 10.0)
    record.metrics(2, {"loss": math.nan, "epoch": 3.0, "acc": 0.5}, epoch=1, samples=640, weight=32, now_s=12.0)
    record.close({})
    (row,) = read_metrics(tmp_path)
    assert (row["worker"], row["t_s"], row["samples"], row["epoch"], row["weight"]) == (2, 2.0, 640, 1, 32)
    values = metrics_of(row)
    assert math.isnan(values.pop("loss"))
    assert values == {"epoch_": 3.0, "acc": 0.5}


@pytest.mark.parametrize("kept", [1, 10, 40])
def test_a_torn_last_line_is_left_out(tmp_path: Path, kept: int) -> None:
    record = RunRecord(tmp_path, 0.0)
    record.note({"event": "pace", "from": "sync", "to": "async", "why": "asked"}, 0.0)
    record.note({"event": "leave", "role": "worker", "id": 0, "reason": "killed by signal 9"}, 1.0)
    record.close({})
    path = tmp_path / EVENTS
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"\n") + 1 + kept])
    assert [event["event"] for event in read_events(tmp_path)] == ["pace"]


def test_a_damaged_line_within_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"worker":0}\n{"worker":\n{"worker":1}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2, is damaged"):
        read_metrics(tmp_path)


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds none of"):
        read_events(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        read_summary(tmp_path / "absent")


def test_a_second_run_in_one_directory_is_refused(tmp_path: Path) -> None:
    RunRecord(tmp_path, 0.0)
    with pytest.raises(ConfigError, match="already holds a run"):
        RunRecord(tmp_path, 0.0)


def test_a_summary_is_replaced_whole_and_leaves_no_other_file(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, 0.0)
    assert read_summary(tmp_path) == {}
    record.close({"exit": 0, "per_worker": {str(worker): {"samples": 10**9} for worker in range(2000)}})
    write_summary(tmp_path, {"exit": 4})
    assert read_summary(tmp_path) == {"exit": 4}
    assert sorted(path.name for path in tmp_path.iterdir()) == [EVENTS, METRICS, "summary.json"]


_FILL = """
import resource, sys
from pathlib import Path
from paceline.errors import WriteError
from paceline.trace.record import RunRecord
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
record = RunRecord(Path(sys.argv[1]), 0.0)
try:
    for version in range(10_000):
        record.note({"event": "update", "version": version}, version * 0.01)
        record.flush_if_due(version * 0.01)
except WriteError as error:
    print(error)
    try:
        record.close({"exit": int(error.exit_code)})
    except WriteError:
        sys.exit(int(error.exit_code))
"""


def test_a_full_file_is_an_error_that_names_it_and_the_summary_is_still_written(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _FILL, str(tmp_path)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stdout == f"{tmp_path / EVENTS} could not be written: File too large\n"
    assert read_summary(tmp_path) == {"exit": 3}
    versions = [event["version"] for event in read_events(tmp_path)]
    assert versions == list(range(len(versions)))
    assert len(versions) > 1000


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/run could not be written: Not a directory"):
        RunRecord(tmp_path / "file" / "run", 0.0)
