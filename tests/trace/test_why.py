"""`paceline why`: the moves as sentences whose numbers are all in the record, one decision whole, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from paceline.cli import main
from paceline.dash.report import write_report
from paceline.errors import ConfigError
from paceline.logic.policies.goodput import Goodput
from paceline.logic.policies.policy import Decision
from paceline.logic.sentence import numbers_in, written
from paceline.logic.signals import Signals, WorkerSignals
from paceline.trace.record import DECISIONS, EVENTS, METRICS, SUMMARY, RunRecord
from paceline.trace.why import story_of
from randomworlds import play

Row = dict[str, object]
HELD = "the move to async was 3.4% of the work ago, its dwell is 15.0%"


def signals(samples: int, pace: str = "sync", *, slowed: float = 4.0) -> Signals:
    """Four workers, one of them `slowed`, after so many of 40,000 samples."""
    steps = [(0.05 * (slowed if number == 3 else 1.0),) * 10 for number in range(4)]
    workers = tuple(WorkerSignals(number, each[0], 0.1, 0.004, 32.0, 0.25, 0, 200, each) for number, each in enumerate(steps))
    rate = 128 / (0.05 * slowed + 0.004) if pace == "sync" else 2000.0
    return Signals(pace, samples // 128, samples, samples / 40_000, 200.0, 4, 4, workers, samples_per_s=rate, loss=0.7, noise_scale=900.0)


def line(number: int, seen: Signals, decision: Decision, *, held: str = "") -> Row:
    """The line that a coordinator writes about a decision."""
    following = None if decision.pace is None else decision.pace.name
    head: Row = {"event": "decision", "number": number, "policy": "goodput", "samples": seen.samples, "share": seen.share}
    head |= {"version": seen.version, "pace": seen.pace, "next": following, "moved": following is not None and not held, "held": held}
    made: Row = {"why": decision.why, "inputs": decision.inputs, "signals": msgspec.to_builtins(seen)}
    made["predicted"] = decision.predicted
    return head | made | msgspec.to_builtins({"candidates": decision.candidates, "leads": decision.leads, "shares": decision.shares})


def rows() -> list[Row]:
    """A run whose policy is held, moves, moves again and is taken back."""
    policy = Goodput(0.1)
    early, later, last = signals(1280, slowed=1.0), signals(12_800), signals(30_080)
    moves = policy.decide(later, ())
    assert moves.pace is not None
    return [
        line(1, early, policy.decide(early, ())),
        line(2, signals(12_160), moves, held=HELD),
        line(3, signals(12_288), moves, held=HELD.replace("3.4", "3.7")),
        line(4, later, moves),
        {"event": "outcome", "number": 4, "pace": moves.pace.name, "predicted": moves.predicted, "came": 1180.4, "error": 0.1},
        {"event": "restore", "samples": 20_480, "share": 0.512, "version": 180, "from": moves.pace.name, "to": "sync"}
        | {"why": "the loss is 2.8, 4 times the 0.7 at the change", "inputs": {"loss": 2.8, "times": 4.0, "loss_before": 0.7}},
        line(5, last, policy.decide(last, ())),
        {"event": "of another time"},
    ]


def write(run_dir: Path, lines: Sequence[Row], *, end: int | None = 40_000) -> Path:
    """The directory of a run with these decisions; without `end` it is one that was killed after 40,000 samples."""
    record = RunRecord(run_dir, 0.0)
    for at_s, row in enumerate(lines):
        record.decide(row, float(at_s))
    record.note({"event": "update", "version": 312, "samples": 40_000, "pace": "sync", "members": []}, 9.0)
    record.close({} if end is None else {"samples": end, "exit": 0})
    return run_dir


def told(capsys: pytest.CaptureFixture[str], *tokens: str | Path, code: int = 0) -> str:
    assert main(["why", *map(str, tokens)]) == code
    said = capsys.readouterr()
    assert not (said.err if code == 0 else said.out)
    return said.out if code == 0 else said.err


def test_the_story_is_every_move_with_its_reason_and_what_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = rows()
    text = told(capsys, write(tmp_path / "run", lines))
    to, predicted = lines[3]["next"], lines[3]["predicted"]
    assert isinstance(predicted, float)
    assert text.splitlines() == [
        "policy goodput, asked 5 times: the pace changed 3 times, 1 of them a move taken back",
        "",
        f"at 12,800 samples, 32 % of the work: from sync to {to}",
        f"    {lines[3]['why']}",
        f"    predicted {written(predicted)} samples/s, 1,180 came",
        "",
        f"at 20,480 samples, 51.2 % of the work: back from {to} to sync",
        "    the loss is 2.8, 4 times the 0.7 at the change",
        "",
        f"at 30,080 samples, 75.2 % of the work: from sync to {to}",
        f"    {lines[6]['why']}",
        f"    predicted {written(predicted)} samples/s, what came was not measured",
        "",
        f"a move to {to} was held back twice, the last at 12,288 samples, 30.7 % of the work",
        f"    {HELD.replace('3.4', '3.7')}",
    ]


def test_every_number_of_a_reason_is_in_the_inputs_of_its_decision(tmp_path: Path) -> None:
    lines = rows()
    story = story_of(write(tmp_path / "run", lines))
    inputs = {str(row["why"]): row["inputs"] for row in lines if "inputs" in row}
    for move in story.moves:
        known = inputs[move.why]
        assert isinstance(known, dict)
        assert numbers_in(move.why)
        assert set(numbers_in(move.why)) <= set(known.values())


def test_in_any_run_every_number_that_is_told_is_in_the_inputs_of_its_line(tmp_path: Path) -> None:
    """Over worlds of random faults and a policy that moves as it likes, is held, fails and is taken back."""
    kinds: Counter[str] = Counter()
    for seed in range(80):
        lines = play(seed).decisions
        for row in lines:
            inputs = row.get("inputs")
            for key in ("why", "held"):
                text = str(row.get(key, ""))
                assert not numbers_in(text) or (isinstance(inputs, dict) and set(numbers_in(text)) <= set(inputs.values())), row
            kinds[str(row["event"])] += 1
            kinds["held"] += bool(row.get("held"))
        if lines:
            story = story_of(write(tmp_path / str(seed), lines))
            assert [move.why for move in story.moves] == [row["why"] for row in lines if row.get("moved") or row["event"] == "restore"]
    assert min(kinds[kind] for kind in ("decision", "restore", "held")) >= 1, kinds


def test_every_number_of_a_head_is_in_its_line(tmp_path: Path) -> None:
    lines = [row for row in rows() if row.get("moved") or row["event"] == "restore"]
    for row, move in zip(lines, story_of(write(tmp_path / "run", lines)).moves, strict=True):
        names = [number for key in ("pace", "next", "from", "to") for number in numbers_in(str(row.get(key, "")))]
        share = row["share"]
        assert isinstance(share, float)
        assert set(numbers_in(move.head)) <= {row["samples"], float(written(100 * share)), *names}


def test_one_decision_is_shown_with_all_that_it_was_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = rows()
    text = told(capsys, write(tmp_path / "run", lines), "--at", "12799")
    assert text.startswith("decision 3 of policy goodput, at 12,288 samples, 30.7 % of the work, after update 96\n")
    assert f"    held back: {HELD.replace('3.4', '3.7')}\n" in text
    assert "sync was in force from the beginning\n" in text
    shown = [cells for cells in (each.split() for each in text.splitlines()) if cells]
    inputs, candidates = lines[2]["inputs"], lines[2]["candidates"]
    assert isinstance(inputs, dict)
    assert isinstance(candidates, tuple)
    for name, value in inputs.items():
        assert [name, written(value)] in shown
    for one in candidates:
        assert [one["pace"], *(written(one[key]) for key in ("samples_per_s", "efficiency", "goodput", "staleness"))] in shown
    assert ["noise_scale", "900"] in shown
    assert sum(cells[0] in "0123" and len(cells) == len(WorkerSignals.__struct_fields__) - 1 for cells in shown) == 4


@pytest.mark.parametrize(
    ("at", "number", "change"),
    [(1280, 1, "sync was in force from the beginning"), (12_800, 4, "from sync to"), (29_000, 4, "back from"), (40_000, 5, "75.2 % of")],
)
def test_the_decision_in_force_is_the_last_one_before(
    at: int, number: int, change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, write(tmp_path / "run", rows()), "--at", str(at))
    assert text.startswith(f"decision {number} of policy goodput")
    assert change in text


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("many", "--at: 'many' is not allowed, it must be a whole number from 0"),
        ("-1", "--at: -1 is not allowed"),
        ("1279", "nothing was decided in {run} by 1,279 samples; `paceline why {run}` tells when"),
        ("40001", "--at: 40,001 samples are beyond the end of {run}, it must be 0 to 40,000"),
    ],
)
@pytest.mark.parametrize("end", [40_000, None])
def test_a_moment_outside_of_the_run_is_refused(
    at: str, says: str, end: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write(tmp_path / "run", rows(), end=end)
    assert told(capsys, run, "--at", at, code=2).startswith(f"paceline: {says.format(run=run)}")


def test_a_directory_that_is_no_run_or_had_no_policy_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, code=2).startswith("paceline: why needs the directory of a run, as in paceline why ")
    assert told(capsys, tmp_path / "none", code=2).startswith(f"paceline: {tmp_path / 'none'} is not the directory of a run: it does not")
    assert told(capsys, tmp_path, code=2).startswith(f"paceline: {tmp_path} is not the directory of a run: it holds none of")
    (tmp_path / "file").touch()
    assert told(capsys, tmp_path / "file", code=2) == f"paceline: {tmp_path / 'file'} is not the directory of a run: it is no directory\n"
    run = write(tmp_path / "run", [])
    for more in ((), ("--at", "3")):
        assert told(capsys, run, *more, code=2).startswith(f"paceline: {run} has no decisions: its pace was not a policy's")


@pytest.mark.parametrize("damage", [b"{", b"\xff", b"3", b'{"event":"decision"}', b'{"event":"restore","t_s":"x"}', b'{"event":"outcome"}'])
def test_a_damaged_line_is_named(damage: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "run", rows()) / DECISIONS
    whole = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([*whole[:2], damage, *whole[2:]]) + b"\n")
    assert told(capsys, tmp_path / "run", code=2).startswith(f"paceline: {file}, line 3, is damaged: ")


@pytest.mark.parametrize("strange", [b'{"event":[1]}', b'{"event":{"decision":1}}', b"{}"])
def test_a_line_of_no_known_kind_is_passed_over(strange: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "run", rows()) / DECISIONS
    before = told(capsys, tmp_path / "run")
    file.write_bytes(strange + b"\n" + file.read_bytes())
    assert told(capsys, tmp_path / "run") == before


@pytest.mark.parametrize("workers", [5, [1, 2], [{"a": 1}, {"b": [1]}], None])
def test_signals_of_another_shape_are_shown_as_far_as_they_go(workers: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = rows()[0] | {"signals": {"workers": workers, "version": 7}}
    assert "version" in told(capsys, write(tmp_path / "run", [row]), "--at", "1280")


@pytest.mark.parametrize("name", [DECISIONS, EVENTS, SUMMARY])
def test_what_cannot_be_read_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run", rows())
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    (run / METRICS).touch()
    code = 0 if name == EVENTS else 2
    assert told(capsys, run, "--at", "30080", code=code)
    with pytest.raises(ConfigError, match=f"{name} cannot be read: Is a directory"):
        write_report(run)


def test_a_torn_last_line_is_what_a_crash_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "run", rows()) / DECISIONS
    before = told(capsys, tmp_path / "run")
    with file.open("ab") as torn:
        torn.write(json.dumps(rows()[3]).encode()[:-20])
    assert told(capsys, tmp_path / "run") == before
