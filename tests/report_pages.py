"""For the tests of the pages: run directories of a small made-up run, written by the real record, and a reader of HTML."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from paceline.trace.record import RunRecord

BATCH = 32


class Move(NamedTuple):
    """A change of pace before update `version`, or a restore."""

    version: int
    before: str
    after: str
    why: str
    undone: int | None = None


def write_run(
    run_dir: Path, *, num_updates: int = 300, num_workers: int = 4, script: str = "train.py", pace: str = "async", **more: object
) -> Path:
    """A run that logs loss at every update and accuracy at every fiftieth; `more` replaces values of the summary."""
    return _write(RunRecord(run_dir, 0.0), run_dir, num_updates, num_workers, pace, script=script, mode=pace, more=more)


def _write(
    record: RunRecord,
    run_dir: Path,
    num_updates: int,
    num_workers: int,
    pace: str,
    *,
    script: str,
    mode: str,
    more: Mapping[str, object],
    moves: Sequence[Move] = (),
) -> Path:
    settings = f"workers = {num_workers}\npace = '{mode}'\n[run]\nscript = '{script}'\n[origin]\nworkers = 'command line'\n"
    (run_dir / "run.toml").write_text(settings)
    for worker in range(num_workers):
        record.note({"event": "join", "role": "worker", "id": worker, "pid": 100 + worker, "host": "here"}, 1.0)
    record.note({"event": "lease", "worker": 0, "positions": [0, 1]}, 2.0)
    now_s = write_updates(record, num_updates, num_workers, pace, moves)
    samples = BATCH * num_updates
    summary: dict[str, object] = {
        "pace": pace,
        "workers": num_workers,
        "servers": 2,
        "samples": samples,
        "updates": num_updates,
        "wall_s": now_s - 2.0,
        "start_s": 2.0,
        "final": {"loss": 0.1, "accuracy": 0.975},
        "staleness": {"mean": 1.5, "p50": 2, "p99": 3, "max": 3},
        "per_worker": {
            str(worker): {"samples": samples // num_workers, "steps": 9, "compute_s": 2.0, "wait_s": 0.5} for worker in range(num_workers)
        },
        "bytes": {"pushed": 10**9, "pulled": 10**9},
        "ledger": {"once": samples, "repeated": 0, "skipped": 0, "undone": 0},
        "exit": 0,
    }
    record.close(summary | dict(more))
    return run_dir


def write_updates(record: RunRecord, num_updates: int, num_workers: int, pace: str, moves: Sequence[Move] = ()) -> float:
    """Updates 10 ms apart from second 2 on; the time of the last one."""
    draw = random.Random(0)
    now_s = 2.0
    for version in range(1, num_updates + 1):
        now_s = 2.0 + 0.01 * version
        for move in moves:
            if move.version == version:
                for event in _moved(move, version):
                    record.note(event, now_s)
                pace = move.after
        member = {"worker": version % num_workers, "step": version // num_workers, "staleness": version % 4, "weight": 1.0}
        record.note({"event": "update", "version": version, "samples": BATCH * version, "pace": pace, "members": [member]}, now_s)
        loss = 2.3 * math.exp(-4 * version / num_updates) * draw.uniform(0.7, 1.3)
        record.metrics(version % num_workers, {"loss": loss}, epoch=0, samples=BATCH * version, weight=BATCH, now_s=now_s)
        if version % 50 == 0:
            record.metrics(0, {"accuracy": 1 - 0.5 * 0.6 ** (version / 50)}, epoch=0, samples=BATCH * version, weight=1, now_s=now_s)
    return now_s


def _moved(move: Move, version: int) -> list[dict[str, object]]:
    told = {"from": move.before, "to": move.after, "why": move.why, "version": version, "samples": BATCH * (version - 1)}
    restored = [] if move.undone is None else [{"event": "restore", "undone": move.undone, **told}]
    return [*restored, {"event": "pace", **told}]


HYBRID = (
    Move(100, "sync", "async", "async is predicted to train 3,000 samples/s at 0.97 of sync's worth, 1.45 times sync's 2,000"),
    Move(180, "async", "sync", "the loss is 2.1 times that at the change", undone=640),
    Move(240, "sync", "backup:1", "backup:1 is predicted to train 2,600 samples/s at 1 of sync's worth, 1.3 times sync's 2,000"),
)


def write_hybrid(run_dir: Path, moves: Sequence[Move] = HYBRID, *, num_updates: int = 300, parts: bool = True) -> Path:
    """A run of the policy goodput with four workers that makes `moves`; each came out at 0.8 of what was predicted."""
    record = RunRecord(run_dir, 0.0)
    if parts:
        for at_s, slow in ((2.5, 0.1), (4.0, 0.25)):
            others = {str(worker): (1 - slow) / 3 for worker in (0, 2, 3)}
            record.note({"event": "shares", "parts": {"1": slow} | others}, at_s)
        record.note({"event": "lead", "worker": 2, "lead": 7}, 3.0)
    held = {"number": 0, "policy": "goodput", "moved": False, "held": "the dwell has 20 updates left", "next": "async"}
    record.decide({"event": "decision", **held}, 2.0)
    for number, move in enumerate(moves, start=1):
        for row in _decided(number, move, num_updates):
            record.decide(row, 2.0 + 0.01 * move.version)
    more = {"pace": moves[-1].after, "updates": num_updates + 1}
    return _write(record, run_dir, num_updates, 4, "sync", script="train.py", mode="hybrid", more=more, moves=moves)


def _decided(number: int, move: Move, num_updates: int) -> list[dict[str, object]]:
    place = {"samples": BATCH * (move.version - 1), "share": (move.version - 1) / num_updates}
    if move.undone is not None:
        return [{"event": "restore", "from": move.before, "to": move.after, "why": move.why, **place}]
    weighed = [
        {"pace": "sync", "samples_per_s": 2000.0, "efficiency": 1.0},
        {"pace": move.after, "samples_per_s": 3000.0, "efficiency": 0.97},
    ]
    told = {"policy": "goodput", "moved": True, "held": "", "next": move.after, "why": move.why, "candidates": weighed, "predicted": 3000.0}
    return [
        {"event": "decision", "number": number, **told, **place},
        {"event": "outcome", "number": number, "pace": move.after, "predicted": 3000.0, "came": 2400.0, "error": 0.25},
    ]


_VOID = {"meta", "input", "br"}


class Page(HTMLParser):
    """Checks that every element is closed, and keeps what a test asks about."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data: dict[str, str] = {}
        self.feed(document)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open:
            return
        if self.open[-1] not in ("script", "style"):
            self.text += data + "\n"
        elif name := self.elements[-1][1].get("id"):
            self.data[name] = data

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.elements if name in (attributes.get("class") or "").split()]

    def paths(self, name: str) -> list[str]:
        return [attributes["d"] or "" for attributes in self.of_class(name) if "d" in attributes]


def read_page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))
