"""The command: what it hands over, what it refuses, and that everything after the script is the script's."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from paceline.cli import main, split_at_script
from paceline.config import Resolved
from paceline.hybrid import mode_names
from paceline.settings import FIELDS


class Taken:
    """Stands where the supervisor is: keeps what it was given, and returns a code as a run does."""

    runs: list[Resolved]

    def __init__(self, resolved: Resolved, write_report: object) -> None:
        self.runs.append(resolved)

    def run(self) -> int:
        return 7


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Resolved]:
    Taken.runs = []
    supervisor = ModuleType("paceline.engine.local.supervisor")
    supervisor.Supervisor = Taken  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, supervisor.__name__, supervisor)
    return Taken.runs


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_run_hands_settings_over_and_returns_the_runs_code(runs: list[Resolved], script: str) -> None:
    assert main(["run", "--workers", "4", "--pace=ssp:3", "--slow", "1=4", "--slow", "3=2@0-0.5", "--lr-rule", "none", script]) == 7
    settings = runs[0].settings
    assert (settings.workers, settings.pace.name, settings.lr_rule, settings.script) == (4, "ssp:3", "none", script)
    assert [str(slow) for slow in settings.slow] == ["1=4", "3=2@0-0.5"]


@pytest.mark.parametrize(
    "args", [["--help"], ["--workers", "9"], ["--pace=async", "-x", "--", "y"], ["--version"], ["", "a b"], ["--", "--workers"]]
)
def test_everything_after_the_script_is_the_scripts(args: list[str], runs: list[Resolved], script: str) -> None:
    assert main(["run", "--workers", "3", script, *args]) == 7
    assert runs[0].settings.args == tuple(args)
    assert runs[0].settings.workers == 3


def test_a_script_may_follow_two_dashes(runs: list[Resolved], script: str) -> None:
    assert main(["run", "--seed", "1", "--", script, "--seed", "2"]) == 7
    assert (runs[0].settings.seed, runs[0].settings.args) == (1, ("--seed", "2"))


@pytest.mark.parametrize(
    ("tokens", "options", "rest"),
    [
        ([], [], []),
        (["a.py"], [], ["a.py"]),
        (["--seed", "1", "a.py", "--seed", "2"], ["--seed", "1"], ["a.py", "--seed", "2"]),
        (["--seed=1", "a.py"], ["--seed=1"], ["a.py"]),
        (["--help", "a.py"], ["--help"], ["a.py"]),
        (["--seed", "--pace", "sync", "a.py"], ["--seed", "--pace", "sync"], ["a.py"]),
        (["--seed", "-1", "a.py"], ["--seed", "-1"], ["a.py"]),
        (["--seed"], ["--seed"], []),
    ],
)
def test_the_first_word_that_is_no_option_is_the_script(tokens: Sequence[str], options: list[str], rest: list[str]) -> None:
    assert split_at_script(tokens) == (options, rest)


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (["run"], "run needs a script, as in paceline run [OPTIONS] SCRIPT [ARGS...]"),
        (["run", "nowhere.py"], "the script nowhere.py does not exist"),
        (["run", "/"], "the script / is not a file"),
        (["run", "--pace", "fast", "SCRIPT"], "--pace: unknown pace 'fast', allowed: sync, "),
        (["run", "--workers", "2", "--pace", "ksync:3", "SCRIPT"], "--pace: pace 'ksync:3' needs 3 different workers"),
        (["run", "--pace", "ssp:-1", "SCRIPT"], "--pace: pace 'ssp:-1': '-1' is not allowed"),
        (["run", "--workers", "0", "SCRIPT"], "--workers: 0 is not allowed, it must be a whole number from 1 to 1024"),
        (["run", "--seed", "-1", "SCRIPT"], "--seed: -1 is not allowed"),
        (["run", "--workers", "2", "--slow", "7=4", "SCRIPT"], "--slow: worker 7 does not exist, with 2 it must be 0 to 1"),
        (["run", "--wokers", "2", "SCRIPT"], "Unknown option: --wokers. Did you mean --workers?"),
        (["run", "--workers"], 'Command "run" parameter --workers requires an argument.'),
        (["run", "--config", "nowhere.toml", "SCRIPT"], "the configuration file nowhere.toml cannot be read: No such file or directory"),
        (["walk"], 'Unknown command "walk".'),
    ],
)
def test_bad_usage_is_one_sentence_and_code_2(
    tokens: list[str], says: str, script: str, runs: list[Resolved], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([script if token == "SCRIPT" else token for token in tokens]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"paceline: {says}")
    assert said.err.count("\n") == 1
    assert not said.out
    assert not runs


def test_a_wrong_environment_variable_is_bad_usage(
    monkeypatch: pytest.MonkeyPatch, script: str, runs: list[Resolved], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_PCAE", "sync")
    assert main(["run", script]) == 2
    assert "did you mean PACELINE_PACE?" in capsys.readouterr().err
    assert not runs


def test_a_warning_does_not_stop_a_run(script: str, runs: list[Resolved], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--workers", "4", "--pace", "async,max_staleness=1", script]) == 7
    assert "steady staleness" in capsys.readouterr().err


def test_explain_shows_values_and_where_they_came_from(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PACELINE_PATIENCE", "2m")
    assert main(["config", "explain", "--workers", "4", "nowhere.py", "--workers", "5"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["workers", "4", "command", "line"] in rows
    assert ["patience", "120s", "PACELINE_PATIENCE"] in rows
    assert ["pace", "hybrid", "default"] in rows


def test_help_lists_every_pace_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    for shown, _ in mode_names():
        assert f"  {shown} " in text
    for option in FIELDS:
        assert f"--{'no-' if option == 'gradients' else ''}{option.replace('_', '-')} " in text
    assert "--config " in text


def test_a_flag_takes_nothing_of_what_follows() -> None:
    tokens = ["--engine", "virtual", "--no-gradients", "train.py", "--workers", "9"]
    assert split_at_script(tokens) == (tokens[:3], tokens[3:])


def test_the_virtual_engine_runs_in_place_of_the_local_one(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Down to the script, which never prepares anything."""
    assert main(["run", "--engine", "virtual", "--cluster", "one-straggler", "--out", str(tmp_path / "run"), script]) == 1
    assert "ended without calling run.prepare" in capsys.readouterr().err
    told = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert (told["engine"], told["cluster"], told["workers"], told["gradients"]) == ("virtual", "one-straggler", 8, "yes")


@pytest.mark.parametrize("tokens", [["--help"], ["config", "--help"]])
def test_pages_that_take_no_pace_list_none(tokens: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tokens) == 0
    assert "ksync" not in capsys.readouterr().out


def test_an_option_of_ours_behind_a_script_that_knows_none_like_it_gets_a_hint(
    tmp_path: Path, runs: list[Resolved], capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    given = ["--workers", "4", "--lr-rule=none", "--seed", "1", "--verbose", "workers"]
    for text, hinted in (("print(1)", ["--workers", "--lr-rule"]), ("parser.add_argument('--workers')\ndef main(lr_rule): ...", [])):
        script.write_text(text)
        assert main(["run", str(script), *given]) == 7
        said = capsys.readouterr().err.splitlines()
        assert said == [
            f"paceline: {option} stands behind {script}, so the script gets it; to set it for the run, write it before {script}"
            for option in hinted
        ]
    assert runs[-1].settings.args == tuple(given)


@pytest.mark.parametrize("module", ["paceline.cli", "cyclopts", "msgspec", "rich"])
def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_traceback(module: str) -> None:
    code = f"""
import builtins, os, runpy, signal, sys
imported = builtins.__import__
def interrupted(name, *rest, **named):
    if name.split(".")[0] == "{module}" or name == "{module}":
        os.kill(os.getpid(), signal.SIGINT)
    return imported(name, *rest, **named)
builtins.__import__ = interrupted
sys.argv = ["paceline", "run", "nowhere.py"]
runpy.run_module("paceline.__main__", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_the_command_runs_as_a_program_without_torch() -> None:
    code = "import sys; from paceline.cli import main; assert main(['--version']) == 0; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    refused = subprocess.run(
        [sys.executable, "-m", "paceline", "run", "nowhere.py"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (refused.returncode, refused.stderr) == (2, "paceline: the script nowhere.py does not exist\n")
