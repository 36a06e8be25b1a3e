"""For the tests of the pages: run directories of a small made-up run, written by the real record, and a reader of HTML."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from paceline.trace.record import RunRecord

BATCH = 32


class Move(NamedTuple):
    """A change of pace before update `version`."""

    version: int
    before: str
    after: str
    why: str


def write_run(
    run_dir: Path, *, num_updates: int = 300, num_workers: int = 4, script: str = "train.py", pace: str = "async", **more: object
) -> Path:
    """A run that logs loss at every update and accuracy at every fiftieth; `more` replaces values of the summary."""
    record = RunRecord(run_dir, 0.0)
    (run_dir / "run.toml").write_text(f"workers = {num_workers}\n[run]\nscript = '{script}'\n[origin]\nworkers = 'command line'\n")
    for worker in range(num_workers):
        record.note({"event": "join", "role": "worker", "id": worker, "pid": 100 + worker, "host": "here"}, 1.0)
    record.note({"event": "lease", "worker": 0, "positions": [0, 1]}, 2.0)
    now_s = write_updates(record, num_updates, num_workers, pace)
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
    record.close(summary | more)
    return run_dir


def write_updates(record: RunRecord, num_updates: int, num_workers: int, pace: str, moves: Sequence[Move] = ()) -> float:
    """Updates 10 ms apart from second 2 on; the time of the last one."""
    draw = random.Random(0)
    now_s = 2.0
    for version in range(1, num_updates + 1):
        now_s = 2.0 + 0.01 * version
        for move in moves:
            if move.version == version:
                record.note({"event": "pace", "from": move.before, "to": move.after, "why": move.why}, now_s)
                pace = move.after
        member = {"worker": version % num_workers, "step": version // num_workers, "staleness": version % 4, "weight": 1.0}
        record.note({"event": "update", "version": version, "samples": BATCH * version, "pace": pace, "members": [member]}, now_s)
        loss = 2.3 * math.exp(-4 * version / num_updates) * draw.uniform(0.7, 1.3)
        record.metrics(version % num_workers, {"loss": loss}, epoch=0, samples=BATCH * version, weight=BATCH, now_s=now_s)
        if version % 50 == 0:
            record.metrics(0, {"accuracy": 1 - 0.5 * 0.6 ** (version / 50)}, epoch=0, samples=BATCH * version, weight=1, now_s=now_s)
    return now_s


_VOID = {"meta", "input", "br"}


class Page(HTMLParser):
    """Checks that every element is closed, and keeps what a test asks about."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
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
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data + "\n"

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.elements if name in (attributes.get("class") or "").split()]

    def paths(self, name: str) -> list[str]:
        return [attributes["d"] or "" for attributes in self.of_class(name) if "d" in attributes]


def read_page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))
