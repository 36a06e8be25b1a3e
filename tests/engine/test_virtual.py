"""Whole runs in virtual time: the user's script, real gradients, everything that a run leaves, and what goes wrong."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from itertools import count
from pathlib import Path

import pytest
import tomli_w
import torch
from safetensors.torch import load_file

from launch import ROOT, environment, paceline_run, run_command
from paceline.cli import main
from paceline.dash.report import write_report
from paceline.engine.virtual import run as virtual_run
from paceline.engine.virtual import stage
from paceline.engine.virtual.prints import Prints
from paceline.errors import WriteError
from paceline.trace.record import RunRecord
from virtually import Played, play, script

UNEVEN = """
[[workers]]
factor = "lognormal"
spread = 0.5
"""


def what_is_left(run: Played) -> dict[str, bytes]:
    """The files of a run that must not depend on the machine."""
    names = ("events.jsonl", "metrics.jsonl", "decisions.jsonl", "final.safetensors")
    return {name: (run.out / name).read_bytes() for name in names if (run.out / name).exists()}


def test_a_run_leaves_what_every_run_leaves(tmp_path: Path) -> None:
    run = play(tmp_path, script(), UNEVEN, pace="async", write_report=write_report)
    assert run.code == 0
    names = {path.name for path in run.out.iterdir()}
    assert {"run.toml", "cluster.toml", "events.jsonl", "metrics.jsonl", "summary.json", "final.safetensors", "report.html"} <= names
    summary = run.summary
    assert (summary["engine"], summary["exit"], summary["ledger"]["once"]) == ("virtual", 0, 2 * 96)
    assert 0.0 < summary["virtual_s"] < 1.0
    assert summary["wall_s"] > 0.0
    joins = run.of("join")
    assert all("pid" not in event for event in joins)
    assert {event["host"] for event in joins if event["role"] == "worker"} == {"virtual-0", "virtual-1", "virtual-2"}
    assert "engine virtual" in run.log(2)
    assert "virtual time" in (run.out / "report.html").read_text()


@pytest.mark.parametrize("pace", ["sync", "async", "hybrid"])
def test_the_same_seed_gives_the_same_bytes_whatever_the_machine_does(pace: str, tmp_path: Path) -> None:
    first = play(tmp_path / "a", script(), UNEVEN, pace=pace)
    over = threading.Event()
    noise = threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(over.is_set, True)])
    noise.start()
    kept = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        second = play(tmp_path / "b", script(), UNEVEN, pace=pace)
    finally:
        sys.setswitchinterval(kept)
        over.set()
        noise.join()
    assert what_is_left(first) == what_is_left(second)
    other = play(tmp_path / "c", script(), UNEVEN, pace=pace, seed=1)
    assert what_is_left(other)["events.jsonl"] != what_is_left(first)["events.jsonl"]


EVERYTHING = """
import random, numpy, torch, paceline
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
run = paceline.init()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(96, 4)), batch_size=4, shuffle=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=36)
model, optimizer, loader, scheduler = run.prepare(model, optimizer, loader, scheduler)
for epoch in run.epochs(3):
    model.train()
    for (x,) in loader:
        optimizer.zero_grad()
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean() + random.random() * numpy.random.rand() * 0.0
        loss.backward()
        run.clip_grad_norm_(1.0)
        optimizer.step()
        scheduler.step()
        run.log(loss=loss)
    run.pull()
    model.eval()
    run.log(error=run.mean(model(torch.ones(1, 4)).item(), 1))
    if epoch == 1:
        saved = {name: value.clone() for name, value in model.state_dict().items()}
    if epoch == 2:
        model.load_state_dict({name: (value + saved[name]) / 2 for name, value in model.state_dict().items()})
"""


@pytest.mark.parametrize("text", [pytest.param(script(), id="a loop", marks=pytest.mark.slow), pytest.param(EVERYTHING, id="everything")])
def test_a_sync_run_has_the_parameters_of_the_local_engine(text: str, tmp_path: Path) -> None:
    run = play(tmp_path, text, pace="sync", workers=2, leases="static")
    local = paceline_run(tmp_path / "train.py", out=tmp_path / "local", pace="sync", workers=2, leases="static", servers=1)
    assert (run.code, local.returncode) == (0, 0), local.stderr
    ours, theirs = load_file(run.out / "final.safetensors"), load_file(tmp_path / "local" / "final.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert run.summary["final"] == Played(0, tmp_path / "local").summary["final"]


def test_each_worker_has_random_streams_of_its_own(tmp_path: Path) -> None:
    """What a worker draws does not depend on the others that play in between, nor do theirs touch the test's."""
    draws = "import random, numpy; print('drew', torch.rand(1).item(), random.random(), numpy.random.rand())"
    text = script(epochs=1, before_step=draws)
    before = torch.get_rng_state()
    alone = play(tmp_path / "alone", text, workers=1, pace="sync")
    three = play(tmp_path / "three", text, UNEVEN, workers=3, pace="async")
    assert torch.equal(before, torch.get_rng_state())
    first = [line for line in alone.log(0).splitlines() if line.startswith("drew")]
    for worker in range(3):
        drawn = [line for line in three.log(worker).splitlines() if line.startswith("drew")]
        assert len(drawn) >= 3
        assert (drawn == first[: len(drawn)]) is (worker == 0)


def test_modules_beside_the_script_are_each_workers_own(tmp_path: Path) -> None:
    (tmp_path / "counter.py").write_text("count = 0\n")
    counting = "import counter, __main__; counter.count += 1; __main__.mine = run.worker"
    after = "print('counted', counter.count, 'as', __main__.mine)"
    run = play(tmp_path, script(epochs=1, before_step=counting, after=after), UNEVEN, pace="async")
    assert run.code == 0
    steps = {worker: done["steps"] for worker, done in run.summary["per_worker"].items()}
    for worker in range(3):
        assert f"counted {steps[str(worker)]} as {worker}\n" in run.log(worker)
    assert "counter" not in sys.modules


def test_recorded_step_times_stand_in_place_of_the_clusters(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("0.5\n")
    ideal = "[network]\nbandwidth = 'inf'\nlatency = 0"
    run = play(tmp_path, script(epochs=1), ideal, workers=2, compute=f"recorded:{tmp_path / 'times'}", slow="1=3")
    # each of 12 updates of two waits for the slow one
    assert run.summary["virtual_s"] == pytest.approx(12 * 1.5)
    waits = {worker: done["wait_s"] for worker, done in run.summary["per_worker"].items()}
    assert waits["0"] == pytest.approx(11.0, abs=1.1)
    assert waits["1"] == pytest.approx(0.0, abs=1e-6)


def test_a_step_that_will_be_dropped_may_end_at_once(tmp_path: Path) -> None:
    cluster = '[network]\nlatency = 0\nbandwidth = "inf"\n[[workers]]\ncount = 2\n[[workers]]\ntimes = 100.0\ncancel = "{}"'
    refused = {}
    for cancel in ("at once", "at step end"):
        run = play(tmp_path / cancel, script(epochs=1), cluster.format(cancel), pace="ksync:2")
        assert run.summary["ledger"]["once"] == 96
        refused[cancel] = [event["t_s"] for event in run.of("refuse")]
    # each update of the two fast ones, every 4 ms, ends the slow one's step; or it hears of it after its 0.4 s
    assert refused["at once"] == pytest.approx([0.004 * (update + 1) for update in range(11)])
    assert refused["at step end"] == pytest.approx([0.4])


# --- who comes and goes ---------------------------------------------------------------------------------------


def test_workers_are_killed_come_back_join_late_and_leave_and_no_sample_is_lost(tmp_path: Path) -> None:
    cluster = """
    [[workers]]
    count = 2
    [[workers]]
    joins = "30 ms"
    leaves = "60 ms"
    [[kill]]
    worker = 0
    at = "20 ms"
    repair = "15 ms"
    """
    run = play(tmp_path, script(epochs=3), cluster, pace="sync")
    assert run.code == 0
    assert run.summary["ledger"]["once"] == 3 * 96
    assert run.summary["lost"] == [0, 2]
    comings = [
        (event["event"], event["worker"]) for event in run.events if event["event"] in ("join", "leave") and event["worker"] is not None
    ]
    assert comings[:6] == [("join", 0), ("join", 1), ("leave", 0), ("join", 2), ("join", 0), ("leave", 2)]
    assert run.log(0).count("paceline: engine") == 2


def test_failures_come_as_often_as_the_cluster_says(tmp_path: Path) -> None:
    run = play(tmp_path, script(epochs=20), '[[workers]]\nmtbf = "100 ms"\nrepair = "5 ms"', pace="async")
    assert run.code == 0
    assert run.summary["ledger"]["once"] == 20 * 96
    failures = [event for event in run.of("leave") if event["reason"] == "its machine failed"]
    assert 0.5 < len(failures) / (3 * run.summary["virtual_s"] / 0.105) < 1.5


def test_the_end_of_the_last_worker_is_the_end_of_the_run(tmp_path: Path) -> None:
    run = play(tmp_path, script(), "[[kill]]\nworker = 0\nat = 0.01", workers=1)
    assert run.code == 4
    assert run.of("end")[0]["sentence"] == "worker 0, the last one, was lost: it was killed"


# --- what scripts do wrong ------------------------------------------------------------------------------------

WRONG = {
    "raises": (script(before_step="if run.worker == 1: raise ValueError('oh no')"), 1, "worker 1: {path} raised ValueError: oh no"),
    "exits": (script(before_step="import sys; sys.exit(3)"), 1, r"worker 0: {path} ended with sys.exit\(3\)"),
    "syntax": ("import paceline\nfor", 1, "worker 0: {path} raised SyntaxError: invalid syntax"),
    "never prepares": ("import paceline\npaceline.init()", 1, r"worker 0: {path} ended without calling run.prepare\(...\)"),
    "never steps": (script().replace("optimizer.step()", "pass"), 1, "without a single update"),
    "init twice": (script().replace("model =", "paceline.init(); model ="), 1, r"worker 0: paceline.init\(\) was called a second time"),
    "starts a process": (script(before_step="import subprocess; subprocess.run(['true'])"), 1, r"starts a process \(subprocess\)"),
    "forks": (script(before_step="import os; os.fork()"), 1, r"starts a process \(os.fork\)"),
    "asks a shell": (script(before_step="import os; os.system('true')"), 1, r"starts a process \(os.system\)"),
    "spawns": (
        script(before_step="import multiprocessing; multiprocessing.get_context('spawn').Process(target=print).start()"),
        1,
        r"starts a process \(a spawned one\)",
    ),
    "no data": (script().replace("randn(96, 4)", "randn(0, 4)").replace(", shuffle=True", ""), 1, "no samples"),
    "another model": (
        script().replace("Linear(4, 1)", "Linear(4, 1, bias=run.worker == 0)"),
        1,
        "worker 1's model on virtual-1 is not that of worker 0 on virtual-0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_script_that_cannot_go_on_ends_the_run_with_one_sentence_and_no_thread(case: str, tmp_path: Path) -> None:
    text, code, sentence = WRONG[case]
    before = threading.active_count()
    run = play(tmp_path, text)
    assert run.code == run.summary["exit"] == code
    ends = run.of("end")
    assert len(ends) == 1
    assert re.search(sentence.format(path=str(tmp_path / "train.py")), ends[0]["sentence"]), ends[0]["sentence"]
    assert threading.active_count() == before


def test_the_traceback_of_a_script_is_in_its_log(tmp_path: Path) -> None:
    run = play(tmp_path, script(before_step="if run.worker == 1: raise ValueError('oh no')"))
    assert 'train.py", line ' in run.log(1)
    assert "ValueError: oh no" in run.log(1)
    assert "paceline/engine" not in run.log(1)


def test_a_script_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("paceline.engine.virtual.theatre.TURN_S", 0.2)
    monkeypatch.setattr(stage, "LOOK_S", 0.1)
    release = threading.Event()
    monkeypatch.setattr(sys.modules["virtually"], "release", release, raising=False)
    run = play(tmp_path, script(before_step="__import__('virtually').release.wait(30)"))
    release.set()
    assert run.code == 5
    assert "worker 0 has run for 0.2 s without a call into Paceline" in capfd.readouterr().err


@pytest.mark.parametrize("gradients", [True, False])
def test_a_full_disk_ends_the_run_and_what_was_not_folded_is_not_counted(
    gradients: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    note, told = RunRecord.note, count()

    def fills_up(self: RunRecord, event: dict[str, object], now_s: float) -> None:
        if next(told) == 20:
            raise WriteError("events.jsonl could not be written: No space left on device")
        note(self, event, now_s)

    monkeypatch.setattr(RunRecord, "note", fills_up)
    run = play(tmp_path, script(), gradients=gradients)
    assert run.code == run.summary["exit"] == 3
    assert "paceline: events.jsonl could not be written: No space left on device\n" in capfd.readouterr().err
    ledger = run.summary["ledger"]
    assert 0 < ledger["once"] < 96
    assert ledger["once"] + ledger["skipped"] == 96


def test_a_log_that_cannot_be_closed_is_told_unless_something_else_is(tmp_path: Path) -> None:
    def printed(*raised: Exception) -> None:
        with Prints(tmp_path, lambda: 0, lambda *_: None) as prints:
            full = prints._logs[0] = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115
            full.write("it is buffered")
            for error in raised:
                raise error

    with pytest.raises(WriteError, match=r"worker-0\.log could not be written: No space left on device"):
        printed()
    with pytest.raises(ValueError, match="oh no"):
        printed(ValueError("oh no"))


def test_a_model_on_a_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were on one, for where there is none."""
    monkeypatch.setattr("paceline.session.joined.device_of", lambda _: torch.device("cuda", 0))
    run = play(tmp_path, script())
    assert run.code == 1
    sentence = "the model is on cuda:0, but the workers of the virtual engine compute on the cpu; leave it there"
    assert sentence in run.of("end")[0]["sentence"]


def test_a_killed_worker_that_catches_everything_is_still_dead(tmp_path: Path) -> None:
    stubborn = script(epochs=3).replace(
        "        optimizer.step()", "        try:\n            optimizer.step()\n        except BaseException:\n            pass"
    )
    run = play(tmp_path, stubborn, "[[kill]]\nworker = 1\nat = 0.02")
    assert run.code == 0
    assert run.summary["ledger"]["once"] == 3 * 96


def test_sleep_lets_virtual_time_pass(tmp_path: Path) -> None:
    start_s = time.monotonic()
    run = play(tmp_path, script(epochs=1, before_step="import time; time.sleep(100)"))
    assert run.summary["virtual_s"] == pytest.approx(800.0, rel=0.01)
    assert time.monotonic() - start_s < 60.0


def test_signal_handlers_of_a_script_are_left_out(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run = play(tmp_path, script(before_step="import signal; signal.signal(signal.SIGTERM, lambda *_: None)"))
    assert run.code == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_loader_with_processes_fetches_in_the_workers_thread(tmp_path: Path) -> None:
    evaluates = "print('seen', sum(len(x) for (x,) in DataLoader(data, batch_size=8, num_workers=3, timeout=1, persistent_workers=True)))"
    run = play(tmp_path, script(after=evaluates).replace("shuffle=True", "shuffle=True, num_workers=2"))
    assert run.code == 0
    assert run.summary["ledger"]["once"] == 2 * 96
    assert "the loader's 2 processes are not started here" in run.log(0)
    assert "a loader's 3 processes are not started here" in run.log(0)
    assert "seen 96" in run.log(0)


# --- without gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pace", "settings"),
    [
        ("sync", {}),
        ("ssp:1", {}),
        ("async", {"slow": "1=3@0.3-0.8"}),
        ("kasync:2", {"leases": "static"}),
        ("sync", {"batch": "global"}),
        ("async", {"shares": "speed"}),
    ],
)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_timing_needs_no_gradients_and_has_the_same_times(pace: str, settings: dict[str, str], is_recorded: bool, tmp_path: Path) -> None:
    """To the microsecond of the record, as long as what a pace decides does not depend on what gradients are."""
    (tmp_path / "times").write_text("0.004 0.006 0.002 0.005 0.003")
    told = settings | ({"compute": f"recorded:{tmp_path / 'times'}"} if is_recorded else {})
    whole, timed = (
        play(tmp_path / str(gradients), script(epochs=3), UNEVEN, pace=pace, gradients=gradients, **told) for gradients in (True, False)
    )
    assert (whole.code, timed.code) == (0, 0)
    assert not (timed.out / "final.safetensors").exists()
    ours, theirs = ([(event["t_s"], event["members"]) for event in run.of("update")] for run in (whole, timed))
    assert [members for _, members in ours] == [members for _, members in theirs]
    assert [t_s for t_s, _ in ours] == pytest.approx([t_s for t_s, _ in theirs], abs=2e-6)


def test_timing_refuses_what_it_cannot_tell(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    uncounted = script().replace("model, optimizer, loader = run.prepare(model, optimizer, loader)", "run.prepare(model, optimizer)")
    assert play(tmp_path / "a", uncounted, gradients=False).code in (1, 2)
    assert "this script's samples are not counted" in capfd.readouterr().err
    several = script(before_step="if (steps := globals().get('steps', 0) + 1) % 2: continue")
    assert play(tmp_path / "b", several, gradients=False).code == 2
    assert "takes one every 2 batches" in capfd.readouterr().err


def test_a_thousand_workers_are_timed(tmp_path: Path) -> None:
    run = play(tmp_path, script(epochs=1).replace("randn(96, 4)", "randn(20000, 4)"), UNEVEN, gradients=False, workers=1000, pace="async")
    assert run.code == 0
    assert run.summary["ledger"]["once"] == 20_000
    assert json.loads((run.out / "events.jsonl").read_text().splitlines()[-1])["event"] == "end"


# --- policies -------------------------------------------------------------------------------------------------


def test_a_users_own_policy_is_asked_while_virtual_time_stands_still(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def flaps(signals, history):\n    return ('sync' if signals.pace == 'async' else 'async'), f'after {len(history)}'\n")
    runs = [play(tmp_path / name, script(epochs=10), UNEVEN, pace=f"hybrid:{mine}:flaps") for name in "ab"]
    assert [run.code for run in runs] == [0, 0]
    assert {event["to"] for event in runs[0].of("pace")} == {"sync", "async"}
    assert runs[0].summary["ledger"]["once"] == 10 * 96
    assert what_is_left(runs[0]) == what_is_left(runs[1])


def test_a_schedule_moves_the_pace(tmp_path: Path) -> None:
    run = play(tmp_path, script(epochs=4), UNEVEN, pace="hybrid:sync@0,async@0.5")
    assert run.code == 0
    assert [(event["from"], event["to"]) for event in run.of("pace")] == [("sync", "async")]
    assert (run.out / "decisions.jsonl").exists()


def test_an_interrupted_run_ends_in_order(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script(epochs=100_000))
    command = run_command(tmp_path / "train.py", out=tmp_path / "run", engine="virtual", workers=3, pace="async")
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        until_s = time.monotonic() + 60.0
        while not (events := tmp_path / "run" / "events.jsonl").exists() or b"update" not in events.read_bytes():
            assert time.monotonic() < until_s
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60.0)
    finally:
        process.kill()
    assert process.returncode == 130
    assert told.endswith("interrupted by SIGINT\n")
    assert Played(130, tmp_path / "run").summary["exit"] == 130


@pytest.fixture(scope="module")
def this_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `paceline calibrate` says of this machine, with four workers on it however many cores it has."""
    file = tmp_path_factory.mktemp("calibrated") / "cluster.toml"
    assert main(["calibrate", "--out", str(file)]) == 0
    cluster = tomllib.loads(file.read_text())
    cluster |= {"size": 4, "workers": [group | {"count": 4, "per_host": 4} for group in cluster["workers"]]}
    file.write_text(tomli_w.dumps(cluster))
    return file


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pace", ["sync", "async", "ssp:3", "ksync:3"])
def test_a_virtual_run_tells_how_long_a_real_one_takes(pace: str, this_machine: Path, tmp_path: Path) -> None:
    """MNIST with the same step times, one worker of four three times as slow, on this machine as it was calibrated.

    Throughput within 10 %, each worker's share of waiting within 10 points of a hundred, mean staleness within 15 %.
    """
    times, example = tmp_path / "times", str(ROOT / "examples" / "mnist.py")
    chance = random.Random(1)
    times.write_text("\n".join(f"{0.15 * chance.lognormvariate(0.0, 0.2):.5f}" for _ in range(500)))
    told = {"workers": 4, "servers": 1, "pace": pace, "compute": f"recorded:{times}", "slow": "1=3"}
    code, out = virtual_run(example, out=tmp_path / "virtual", args=("--epochs", "2"), cluster=str(this_machine), **told)
    assert code == 0
    virtual = Played(code, out).summary
    assert paceline_run(example, "--epochs", "2", out=tmp_path / "real", timeout_s=300.0, **told).returncode == 0
    real = Played(0, tmp_path / "real").summary
    assert virtual["samples"] / virtual["virtual_s"] == pytest.approx(real["samples"] / real["wall_s"], rel=0.1)
    assert virtual["staleness"]["mean"] == pytest.approx(real["staleness"]["mean"], rel=0.15)
    for worker, done in real["per_worker"].items():
        share, ours = (one["wait_s"] / (one["wait_s"] + one["compute_s"]) for one in (done, virtual["per_worker"][worker]))
        assert ours == pytest.approx(share, abs=0.1)
