"""What the documents show is true: both READMEs say the same, commands parse, the diff runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from launch import ROOT, SCRIPTS, events, paceline_run
from paceline.cli import main
from paceline.engine.virtual import run
from paceline.hybrid import mode_names, parse_mode
from paceline.logic.signals import Signals, WorkerSignals
from paceline.pace import KEYS, pace_names, parse_pace
from paceline.trace.record import each_decision, read_summary

ENGLISH, CHINESE = (ROOT / "README.md").read_text(), (ROOT / "README.zh-CN.md").read_text()
RUN_DIRECTORY = (ROOT / "docs" / "run-directory.md").read_text()
PACES, HYBRID = (ROOT / "docs" / "paces.md").read_text(), (ROOT / "docs" / "hybrid.md").read_text()


def fences(text: str) -> list[str]:
    """The code blocks, comments left out."""
    blocks = re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)
    return ["\n".join(line.split("#")[0].rstrip() for line in block.splitlines()) for block in blocks]


def first_cells(text: str) -> list[str]:
    """The first cell of every table row that names code."""
    return re.findall(r"^\| (`[^`]+`) \|", text, re.MULTILINE)


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its level."""
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def shown_policy() -> str:
    """The policy of a user that the page on hybrid shows."""
    return next(block for block in re.findall(r"```python\n(.*?)```", HYBRID, re.DOTALL) if "def policy(" in block)


def test_both_readmes_have_the_same_structure_commands_and_tables() -> None:
    levels = [[line.split()[0] for line in text.splitlines() if line.startswith("#")] for text in (ENGLISH, CHINESE)]
    assert levels[0] == levels[1]
    assert fences(ENGLISH) == fences(CHINESE)
    assert first_cells(ENGLISH) == first_cells(CHINESE)
    assert ENGLISH.count("\n|") == CHINESE.count("\n|")
    links = [re.findall(r"\]\(([^)]+)\)", text) for text in (ENGLISH, CHINESE)]
    assert links[0] == links[1]


def test_every_link_and_picture_exists() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_tables_of_paces_and_of_policies_are_complete() -> None:
    paces = [shown for shown, _ in pace_names()]
    policies = [shown for shown, _ in mode_names() if shown not in paces]
    assert first_cells(section(ENGLISH, "Paces")) == [f"`{shown}`" for shown in paces]
    assert first_cells(section(ENGLISH, "Hybrid")) == [f"`{shown}`" for shown in policies]


def test_every_key_of_a_pace_is_explained_with_the_values_it_takes() -> None:
    rows = [row.split(" | ") for row in section(PACES, "Settings of a pace").splitlines() if row.startswith("| `")]
    assert [row[0].strip("| `") for row in rows] == list(KEYS)
    for row in rows:
        for word in re.findall(r"`([a-z]+)`", row[2]):
            pace = "async" if row[0].strip("| `") == "weighting" else "ksync:2"
            assert parse_pace(f"{pace},{row[0].strip('| `')}={word}"), row


def test_the_modes_that_the_page_on_hybrid_writes_are_understood() -> None:
    told = set(re.findall(r"`((?:hybrid|dssp):[^`]+)`", HYBRID))
    written = {text for text in told if not re.search(r"SHARE|:K$|lo:hi", text)} - {"hybrid:FILE.py:FUNC"}
    assert len(written) >= 2
    for text in written:
        assert parse_mode(text).name == text
    policies = [shown for shown, _ in mode_names() if shown not in {pace for pace, _ in pace_names()}]
    assert told >= set(policies) - {"hybrid"}


def test_the_policy_that_the_page_on_hybrid_shows_decides_as_it_says() -> None:
    names: dict[str, Any] = {}
    exec(compile(shown_policy(), "hybrid.md", "exec"), names)
    worker = WorkerSignals(0, 0.1, 0.0, 0.0, 32.0, 1.0, 0, 9)

    def decide(pace: str, share: float | None, ratio: float) -> tuple[str | None, str]:
        signals = Signals(pace, 10, 320, share, 90.0, 4, 4, (worker,), straggler_ratio=ratio)
        return names["policy"](signals, ())

    assert decide("sync", 0.05, 0.6)[0] is None
    assert decide("sync", None, 0.6)[0] is None
    assert decide("sync", 0.2, 0.6) == ("async", "the straggler ratio is 0.60")
    assert decide("async", 0.5, 0.1)[0] == "sync"
    assert decide("async", 0.5, 0.6)[0] is None


def test_the_commands_that_the_pages_show_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.py").write_text(shown_policy())
    for block in [*fences(ENGLISH), *fences(HYBRID)]:
        for line in block.splitlines():
            if line.startswith("paceline run"):
                assert main(["config", "explain", *shlex.split(line)[2:]]) == 0, line
    assert "pace" in capsys.readouterr().out


@pytest.mark.timeout(120)
def test_the_diff_of_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    diff = next(block for block in fences(ENGLISH) if "+import paceline" in block)
    body = "\n".join(line[1:] for line in diff.splitlines())
    head = "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\nfrom torch.nn.functional import mse_loss as loss_fn\n"
    head += "train = TensorDataset(torch.ones(256, 4), torch.ones(256, 1))\ndef Net(): return torch.nn.Linear(4, 1)\n"
    script = tmp_path / "train.py"
    script.write_text(head + body)
    done = paceline_run(script, out=tmp_path / "run", workers=2, pace="ssp:3")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def moved_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run with a straggler under the policy that the page on hybrid shows; a virtual one writes all that others do."""
    folder = tmp_path_factory.mktemp("moved")
    (folder / "policy.py").write_text(shown_policy())
    options: dict[str, object] = {"workers": 4, "servers": 1, "slow": "1=5", "pace": f"hybrid:{folder / 'policy.py'}:policy"}
    finished = run(SCRIPTS / "counting.py", out=folder / "run", args=("400", "1", "1", "0"), **options)  # type: ignore[arg-type]
    assert finished.code == 0
    return finished.out


@pytest.mark.timeout(120)
def test_the_policy_that_the_page_on_hybrid_shows_moves_a_run_with_a_straggler(moved_run: Path) -> None:
    moves = [(event["from"], event["to"]) for event in events(moved_run) if event["event"] == "pace"]
    assert moves[0] == ("sync", "async")
    asked = [row for row in each_decision(moved_run) if row["event"] == "decision"]
    assert {row["held"] for row in asked} == {""}
    assert "it is too early" in {row["why"] for row in asked}


@pytest.mark.timeout(120)
def test_the_page_on_the_run_directory_names_every_key_that_a_run_writes(moved_run: Path) -> None:
    for name, rows in {
        "events.jsonl": events(moved_run),
        "decisions.jsonl": list(each_decision(moved_run)),
        "summary.json": [read_summary(moved_run)],
    }.items():
        told = set(re.findall(r"`(\w+)`", section(RUN_DIRECTORY, name))) | {"event", "t_s"}
        assert rows, name
        assert {key for row in rows for key in row} <= told, name
        assert {row["event"] for row in rows if "event" in row} <= told, name
