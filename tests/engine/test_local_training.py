"""Faults in the middle of a training on one machine: who goes on, who ends, with which words, and how soon."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from launch import events
from watched import Watched

Watch = Callable[..., Watched]

TRAIN = """
import sys, time
import torch, paceline
from torch.utils.data import DataLoader, TensorDataset

run = paceline.init()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4, num_workers={num_workers})
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs({epochs}):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        {before_step}
        optimizer.step()
        run.log(loss=loss.detach())
"""


def script(*, epochs: int = 1000, before_step: str = "time.sleep(0.01)", num_workers: int = 0) -> str:
    """TRAIN with some of its parts replaced; it goes on for minutes unless told otherwise."""
    return TRAIN.format(epochs=epochs, before_step=before_step, num_workers=num_workers)


def updates(run: Watched) -> int:
    """How many updates the run has made."""
    return sum(event["event"] == "update" for event in events(run.out))


def in_training(watch: Watch, text: str, **options: object) -> Watched:
    """A run that has made some updates."""
    run = watch(text, **options)
    run.wait_for(lambda: updates(run) >= 5)
    return run


def test_a_loop_that_is_left_open_at_the_end_prints_nothing(watch: Watch) -> None:
    start, _, _ = script().partition("for epoch")
    run = watch(start + "batches = iter(loader)\ndef step():\n    model(next(batches)[0]).sum().backward()\n    optimizer.step()\nstep()\n")
    assert run.code() == 0
    assert "Traceback" not in run.printed()


@pytest.mark.parametrize("pace", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_run_to_its_end_leaves_everything_in_its_directory(watch: Watch, pace: str) -> None:
    run = watch(script(epochs=3, before_step="pass"), pace=pace, servers=2)
    assert run.code() == 0
    assert "ledger: every sample once" in run.printed()
    assert run.printed().endswith(f"report: {run.out / 'report.html'}\n")
    summary = run.summary()
    assert (summary["exit"], summary["samples"], summary["ledger"]["once"]) == (0, 192, 192)
    assert summary.keys() >= {
        *("pace", "workers", "servers", "samples", "updates", "wall_s", "start_s", "final", "staleness", "per_worker", "bytes"),
        *("ledger", "exit", "moves", "lost"),
    }
    assert summary["staleness"].keys() == {"mean", "p50", "p99", "max"}
    assert summary["per_worker"].keys() == {"0", "1"}
    assert summary["per_worker"]["0"].keys() >= {"samples", "steps", "compute_s", "wait_s"}
    # a gradient of each step, shared memory counted like a wire; each of the six parameters begins at a multiple of 64 bytes
    assert summary["bytes"]["pushed"] == 64 * (2 + 5) * sum(one["steps"] for one in summary["per_worker"].values())
    assert summary["bytes"]["pulled"] > 0
    final = load_file(run.out / "final.safetensors")
    assert set(final) == {f"{part}.{name}" for part in "012" for name in ("weight", "bias")} | {
        f"1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }
    assert final["1.num_batches_tracked"].item() > 0
    keys = {str(event["event"]): event.keys() for event in events(run.out)}
    assert keys.keys() >= {"join", "leave", "lease", "update", "end"}
    assert keys["join"] >= {"role", "id", "worker", "pid", "host", "t_s"}
    assert keys["leave"] >= {"role", "id", "reason"}
    assert keys["update"] >= {"version", "samples", "pace", "members"}
    assert {next(iter(event)) for event in events(run.out)} == {"event"}
    assert {path.name for path in run.out.iterdir()} == {
        "run.toml", "logs", "events.jsonl", "metrics.jsonl", "summary.json", "report.html", "final.safetensors",
    }  # fmt: skip


@pytest.mark.slow  # one that is interrupted alone leaves in the same way, and tests/e2e/test_samples.py kills in every pace
@pytest.mark.parametrize("pace", ["sync", "async"])
def test_the_others_go_on_without_a_killed_worker(watch: Watch, pace: str) -> None:
    run = in_training(watch, script(epochs=8), pace=pace, workers=3)
    run.kill("worker_main worker 2")
    assert run.code() == 0
    assert "worker 2 (pid" in run.printed()
    assert "was killed by SIGKILL and has left, the others go on" in run.printed()
    assert run.summary()["lost"] == [2]
    assert "ledger: every sample once" in run.printed()


@pytest.mark.parametrize("part", ["coordinator_main", "server_main server 1"])
def test_the_loss_of_the_coordinator_or_a_server_ends_the_training(watch: Watch, part: str) -> None:
    run = in_training(watch, script(num_workers=1), servers=2)
    run.kill(part)
    assert run.code_soon() == 4
    printed = run.printed()
    assert f"paceline: {part.partition(' ')[2] or 'coordinator'} (pid " in printed
    assert printed.count("was killed by SIGKILL") == 1
    assert "Traceback" not in printed
    assert run.summary()["exit"] == 4


def test_ctrl_c_in_the_middle_keeps_what_was_done(watch: Watch) -> None:
    run = in_training(watch, script(num_workers=1), servers=None)
    # as many servers as cores, of which a small model needs one
    run.wait_for(lambda: len(run.pids("server_main")) == 1)
    assert run.pids("server_main server 0")
    run.process.send_signal(signal.SIGINT)
    assert run.code_soon() == 130
    assert run.summary()["exit"] == 130
    assert run.summary()["updates"] >= 5
    assert events(run.out)[-1]["event"] == "end"
    assert "Traceback" not in run.printed()


def test_one_workers_exception_ends_the_training_for_all(watch: Watch) -> None:
    run = watch(script(before_step="assert run.worker != 1 or epoch < 2, 'worker one fails'"))
    assert run.code() == 1
    assert run.printed().count("Traceback") == 1
    assert "AssertionError: worker one fails" in run.printed()
    assert "paceline: worker 1: " in run.printed()
    assert run.summary()["exit"] == 1


def test_nothing_of_a_training_outlives_a_killed_supervisor(watch: Watch) -> None:
    run = in_training(watch, script(num_workers=1))
    run.process.kill()
    end = time.monotonic() + 10
    while run.pids():
        assert time.monotonic() < end, run.pids()
        time.sleep(0.05)
    assert run.summary()["exit"] == 4


@pytest.mark.slow
def test_a_stopped_server_is_named_when_the_patience_is_over(watch: Watch) -> None:
    run = in_training(watch, script(), patience="3s")
    run.kill("server_main", signal.SIGSTOP)
    assert run.code(60) == 5
    assert "server 0" in run.printed()
    assert run.summary()["exit"] == 5


def test_a_stopped_worker_is_named_when_the_patience_is_over(watch: Watch) -> None:
    run = in_training(watch, script(), patience="3s")
    run.kill("worker_main worker 1", signal.SIGSTOP)
    assert run.code(40) == 5
    assert "worker 1" in run.printed()


def test_a_disk_that_fills_up_under_the_events_ends_the_run(watch: Watch, small_disk: Path) -> None:
    run = in_training(watch, script(), out=small_disk / "run")
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 4096):
                pass
        except OSError:
            pass
    assert run.code(10) == 3
    assert "jsonl could not be written: No space left on device" in run.printed()
    assert json.loads((run.out / "summary.json").read_text())["exit"] == 3


def test_a_run_directory_that_is_deleted_ends_the_run_soon(watch: Watch) -> None:
    run = in_training(watch, script())
    shutil.rmtree(run.out)
    assert run.code_soon() == 3
    assert "events.jsonl could not be written: it was deleted, moved or replaced while the run went on" in run.printed()
    assert not run.out.exists()


def test_one_that_is_interrupted_alone_has_left_and_is_named(watch: Watch) -> None:
    run = in_training(watch, script(epochs=8), workers=3)
    run.kill("worker_main worker 1", signal.SIGINT)
    assert run.code() == 0
    assert "worker 1 (pid" in run.printed()
    assert "was killed by SIGINT and has left, the others go on" in run.printed(), run.printed()
    assert "KeyboardInterrupt" not in run.printed()
    assert run.summary()["lost"] == [1]
    assert "ledger: every sample once" in run.printed()


def test_one_that_ends_itself_without_a_word_is_told_of(watch: Watch) -> None:
    leaves = "import os; (run.worker, epoch) == (1, 2) and (time.sleep(1.0), os._exit(0))"
    run = watch(script(epochs=4, before_step=leaves), workers=3)
    assert run.code() == 0
    told = "ended with status 0 in epoch 2 before its script was over, as os._exit(0) does, and has left; its samples went to the others"
    assert told in run.printed()
    assert run.summary()["lost"] == [1]
    assert "ledger: every sample once" in run.printed()


def test_when_the_first_worker_is_killed_the_next_one_evaluates(watch: Watch) -> None:
    run = in_training(watch, script(epochs=6) + "    run.pull()\n    if run.is_first:\n        run.log(evaluated=epoch)\n")
    run.kill("worker_main worker 0")
    assert run.code() == 0
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines() if '"evaluated"' in line]
    assert rows[-1]["worker"] == 1
    assert rows[-1]["evaluated"] == 5
    assert len(rows) == len({row["evaluated"] for row in rows})
    assert run.summary()["final"]["evaluated"] == 5


@pytest.mark.slow
def test_the_first_epoch_begins_without_one_that_is_later_than_the_patience_and_it_joins(watch: Watch, tmp_path: Path) -> None:
    flag = tmp_path / "begun"
    waits = f"from pathlib import Path\nbegun = Path({str(flag)!r})\nwhile run.worker == 1 and not begun.exists():\n    time.sleep(0.05)\n"
    text = script(epochs=20).replace("model =", f"{waits}model =", 1)
    run = watch(text.replace("run.log(", "begun.touch(); run.log("), pace="async", patience="2s", servers=None)
    assert run.code(90) == 0
    assert "ledger: every sample once" in run.printed()
    told = events(run.out)
    joined = next(at for at, event in enumerate(told) if event["event"] == "join" and event["worker"] == 1)
    assert "update" in {event["event"] for event in told[:joined]}
    assert {member["worker"] for event in told[joined:] if event["event"] == "update" for member in event["members"]} == {0, 1}  # type: ignore[attr-defined]
    # it has connected to every server, so those without a shard go only now
    assert all(at > joined for at, event in enumerate(told) if event["event"] == "leave" and event["role"] == "server")


def test_nobody_goes_on_when_all_crash_at_once(watch: Watch) -> None:
    run = watch(script(before_step="import os; epoch == 1 and os.kill(os.getpid(), 11)"), workers=3)
    assert run.code() == 4
    printed = run.printed()
    assert "the others go on" not in printed
    assert printed.count("was killed by SIGSEGV") == 3
    assert printed.count("the last one, was killed by SIGSEGV, so the run ends") == 1
