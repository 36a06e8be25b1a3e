"""What the documents show is true: both READMEs say the same, commands parse, the diff runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from launch import ROOT, paceline_run
from paceline.cli import main
from paceline.pace import pace_names

ENGLISH, CHINESE = (ROOT / "README.md").read_text(), (ROOT / "README.zh-CN.md").read_text()


def fences(text: str) -> list[str]:
    """The code blocks, comments left out."""
    blocks = re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)
    return ["\n".join(line.split("#")[0].rstrip() for line in block.splitlines()) for block in blocks]


def first_cells(text: str) -> list[str]:
    """The first cell of every table row that names code."""
    return re.findall(r"^\| (`[^`]+`) \|", text, re.MULTILINE)


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


def test_the_table_of_paces_is_complete() -> None:
    assert [f"`{name}`" for name, _ in pace_names()] == [
        cell for cell in first_cells(ENGLISH) if ":" in cell or cell in ("`sync`", "`async`")
    ]


def test_the_commands_that_the_readme_shows_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    for block in fences(ENGLISH):
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
