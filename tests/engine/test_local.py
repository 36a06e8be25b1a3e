"""How a run on one machine ends when its script never trains: codes, sentences, and nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch import environment, events, run_command
from watched import Watched

Watch = Callable[..., Watched]

SLEEP = "import time\nprint('asleep')\ntime.sleep(600)\n"
EXIT = """
import os, subprocess, sys, __main__
from pathlib import Path
assert __name__ == "__main__" and __main__.__file__ == sys.argv[0] == __file__
assert sys.path[0] == str(Path(__file__).resolve().parent), sys.path
assert "" not in sys.path
assert "PACELINE_JOB_BRIEF" not in os.environ
print("out of", sys.argv[1:])
print("to err", file=sys.stderr)
subprocess.Popen(["sleep", "600"])
sys.exit(0)
"""
RAISE = """
def divide(x):
    return x / 0

print("before")
divide(1)
"""


def test_a_script_that_raises_ends_the_run_with_its_traceback_first_and_once(watch: Watch) -> None:
    run = watch(RAISE, workers=3)
    assert run.code() == 1
    printed = run.printed()
    assert printed.count("Traceback") == printed.count("ZeroDivisionError: division by zero\n  ") + 1 == 1
    assert "line 6, in <module>\n    divide(1)" in printed
    assert "line 3, in divide" in printed
    assert "runpy" not in printed
    assert "src/paceline" not in printed
    assert "train0.py raised ZeroDivisionError: division by zero" in printed
    assert run.summary()["exit"] == 1
    logs = [(run.out / "logs" / f"worker-{worker}.log").read_text() for worker in range(3)]
    assert any("Traceback" in log for log in logs)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A run of EXIT that is over."""
    folder = tmp_path_factory.mktemp("ended")
    (folder / "train.py").write_text(EXIT)
    run = Watched(folder / "run", folder / "train.py", "--lr", "0.1", "--workers", "7", workers=3)
    run.code()
    yield run
    run.close()


def test_worker_0_is_on_the_console_and_everyone_in_a_log(ended: Watched) -> None:
    assert "[0] out of ['--lr', '0.1', '--workers', '7']\n" in ended.printed()
    assert "[0] to err\n" in ended.printed()
    assert (ended.out / "logs/worker-1.log").read_text() == "out of ['--lr', '0.1', '--workers', '7']\nto err\n"


def test_a_script_runs_as_python_would_run_it(ended: Watched) -> None:
    assert "nothing to train" in ended.printed()
    assert "raised" not in ended.printed()


def test_a_script_that_never_prepares_is_told_so(watch: Watch) -> None:
    run = watch("print('done')")
    assert run.code() == 1
    assert "train0.py ended without calling run.prepare(...), so there was nothing to train" in run.printed()
    assert run.printed().count("without calling") == 1
    assert run.summary()["exit"] == 1


def test_sys_exit_with_a_code_is_a_failure(watch: Watch) -> None:
    run = watch("import sys; sys.exit(7)")
    assert run.code() == 1
    assert "train0.py ended with sys.exit(7)" in run.printed()
    assert "Traceback" not in run.printed()


@pytest.mark.slow  # without processes: tests/engine/test_local_parts.py
def test_a_syntax_error_is_shown_where_it_is(watch: Watch) -> None:
    run = watch("x = = 1\n")
    assert run.code() == 1
    assert "x = = 1" in run.printed()
    assert "raised SyntaxError: invalid syntax" in run.printed()
    assert "worker_main.py" not in run.printed()


def test_a_script_that_ends_its_process_hard_is_a_failure(watch: Watch) -> None:
    run = watch("import os; os._exit(9)")
    assert run.code() == 1
    assert "ended with status 9" in run.printed()


def test_one_of_our_own_errors_is_a_sentence_with_the_scripts_line(watch: Watch) -> None:
    run = watch("from paceline.errors import UsageError\n\ndef check():\n    raise UsageError('two optimizers')\n\ncheck()\n")
    assert run.code() == 1
    assert "two optimizers (" in run.printed()
    assert "train0.py, line 4: raise UsageError('two optimizers'))" in run.printed()
    assert "Traceback" not in run.printed()


def test_a_script_that_does_not_exist_is_bad_usage(watch: Watch, tmp_path: Path) -> None:
    run = Watched(tmp_path / "run", tmp_path / "none.py")
    assert run.code_soon() == 2
    assert "none.py does not exist" in run.printed()
    assert not run.out.exists()
    run.close()


def test_a_directory_holds_one_run(watch: Watch, ended: Watched) -> None:
    first = ended
    before = {path: path.read_bytes() for path in first.out.rglob("*") if path.is_file()}
    second = watch("print('never')", out=first.out)
    assert second.code_soon() == 2
    assert "already holds a run (run.toml is there), choose another directory with --out" in second.printed()
    assert {path: path.read_bytes() for path in first.out.rglob("*") if path.is_file()} == before


def test_a_directory_that_cannot_be_made_is_a_failed_write(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = watch("print('never')", out=tmp_path / "file" / "run")
    assert run.process.wait(10) == 3
    assert "cannot be written: Not a directory" in run.printed()


@pytest.mark.parametrize(("mode", "out"), [(0o555, "run"), (0o555, "."), (0o000, "run")])
def test_a_directory_that_may_not_be_written_is_a_failed_write_for_who_is_not_root(tmp_path: Path, mode: int, out: str) -> None:
    (tmp_path / "train.py").write_text("print('never')")
    (tmp_path / "closed").mkdir(mode)
    (tmp_path / "closed").chmod(mode)
    as_anybody = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = run_command(tmp_path / "train.py", out=tmp_path / "closed" / out)
    done = subprocess.run([*as_anybody, *command], capture_output=True, text=True, timeout=40, env=environment(), check=False)
    (tmp_path / "closed").chmod(0o755)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"paceline: the run directory {tmp_path / 'closed' / out} cannot be written: Permission denied\n"


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_signal_ends_the_run_with_its_code(watch: Watch, number: int, code: int) -> None:
    run = watch(SLEEP)
    run.wait_until_printed("asleep")
    run.process.send_signal(number)
    assert run.code_soon() == code
    assert f"by {signal.Signals(number).name}" in run.printed()
    assert run.summary()["exit"] == code


@pytest.mark.parametrize("delay_s", [0.0, pytest.param(0.3, marks=pytest.mark.slow), 1.0])
def test_ctrl_c_at_any_moment_of_the_start_is_obeyed(watch: Watch, delay_s: float) -> None:
    run = watch(SLEEP)
    run.wait_for(lambda: len(run.pids()) > 1)
    time.sleep(delay_s)
    run.process.send_signal(signal.SIGINT)
    assert run.code_soon() == 130
    assert run.summary()["exit"] == 130


def test_a_second_ctrl_c_kills_at_once(watch: Watch) -> None:
    run = watch("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('asleep')\ntime.sleep(600)")
    run.wait_until_printed("asleep")
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    start = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert run.code_soon() == 130
    assert time.monotonic() - start < 1.5


def test_what_ignores_terminate_and_what_a_script_has_started_are_killed(watch: Watch) -> None:
    text = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"])
print("asleep")
time.sleep(600)
"""
    run = watch(text)
    run.wait_until_printed("asleep")
    run.process.send_signal(signal.SIGTERM)
    assert run.code_soon() == 143


def test_what_a_script_leaves_behind_ends_with_it(ended: Watched) -> None:
    assert ended.process.returncode == 1
    assert ended.pids() == []


@pytest.mark.slow  # in a training, where it is harder: tests/engine/test_local_training.py
@pytest.mark.parametrize(("part", "name"), [("coordinator_main", "coordinator"), ("server_main", "server 0")])
def test_the_loss_of_what_all_need_ends_the_run(watch: Watch, part: str, name: str) -> None:
    run = watch(SLEEP)
    run.wait_until_printed("asleep")
    run.kill(part)
    assert run.code_soon() == 4
    assert f"{name} (pid " in run.printed()
    assert "was killed by SIGKILL" in run.printed()
    assert run.summary()["exit"] == 4


def test_the_loss_of_the_last_worker_ends_the_run(watch: Watch) -> None:
    run = watch(SLEEP)
    run.wait_until_printed("asleep")
    run.kill("worker_main worker 1")
    run.wait_until_printed("has left, the others go on")
    run.kill("worker_main worker 0")
    assert run.code_soon() == 4
    assert "worker 0 (pid" in run.printed()
    assert "the last one, was killed by SIGKILL" in run.printed()


@pytest.mark.slow  # in a training, where it is harder: tests/engine/test_local_training.py
def test_nothing_outlives_a_killed_supervisor(watch: Watch) -> None:
    run = watch(SLEEP)
    run.wait_until_printed("asleep")
    assert len(run.pids()) == 5
    run.process.kill()
    end = time.monotonic() + 10
    while run.pids():
        assert time.monotonic() < end, run.pids()
        time.sleep(0.02)
    assert run.summary()["exit"] == 4


def test_nothing_outlives_a_supervisor_that_is_killed_at_the_start(watch: Watch) -> None:
    for delay_s in (0.0, 0.3):
        run = watch(SLEEP)
        run.wait_for(lambda run=run: len(run.pids()) > 2)
        time.sleep(delay_s)
        run.process.kill()
        end = time.monotonic() + 10
        while run.pids():
            assert time.monotonic() < end, run.pids()
            time.sleep(0.02)


def test_a_full_disk_under_a_log_ends_the_run_as_a_failed_write(watch: Watch, small_disk: Path) -> None:
    run = watch("import time\nwhile True:\n    print('x' * 1000)\n    time.sleep(0.001)\n", out=small_disk / "run")
    assert run.code(20) == 3
    assert "could not be written: No space left on device" in run.printed()
    assert run.summary()["exit"] == 3


def test_a_disk_that_is_full_from_the_start_is_said(watch: Watch, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * (320 << 10))
    run = watch("print('never')", out=small_disk / "run")
    assert run.process.wait(10) == 3
    assert "No space left on device" in run.printed()


@pytest.mark.parametrize(("part", "name"), [("coordinator_main", "coordinator"), ("server_main", "server 0")])
def test_what_all_need_is_named_when_it_alone_is_interrupted(watch: Watch, part: str, name: str) -> None:
    run = watch(SLEEP)
    run.wait_for(lambda: any(event["event"] == "join" for event in events(run.out)))
    run.kill(part, signal.SIGINT)
    assert run.code_soon() == 4
    assert f"{name} (pid " in run.printed()
    assert "was killed by SIGINT" in run.printed()
    assert "Traceback" not in run.printed()


def test_scripts_that_all_exit_well_before_prepare_have_trained_nothing(ended: Watched) -> None:
    assert ended.process.returncode == 1
    assert "the script ended in every worker before it called run.prepare(...), so there was nothing to train" in ended.printed()
    assert ended.summary()["exit"] == 1
