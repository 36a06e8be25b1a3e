"""Runs on a Ray cluster of several raylets: the same bits as on one machine, workers that come and go, and every kind of end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch import SCRIPTS, environment, events, paceline_run, run_command, wait_for_updates
from paceline.engine.ray import cluster
from paceline.errors import ConfigError
from paceline.trace.record import read_summary
from rayed import Raylets

pytest.importorskip("ray")

SCRIPT, LASTING = SCRIPTS / "launched.py", SCRIPTS / "lasting.py"
TIMEOUT_S = 100.0
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def raylets() -> Iterator[Raylets]:
    made = Raylets(3)
    yield made
    made.close()


class Actors:
    """A run under Ray that is looked at while it goes on."""

    def __init__(self, raylets: Raylets, folder: Path, *arguments: str, script: Path = LASTING, **options: object) -> None:
        self.out, self._printed = folder / "run", folder / "printed.txt"
        command = run_command(script, *arguments, out=self.out, engine="ray", address=raylets.address, **options)
        with self._printed.open("w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment())

    def joined(self) -> list[int]:
        """The workers in the order in which they have joined."""
        return [int(str(event["id"])) for event in events(self.out) if event["event"] == "join" and event["role"] == "worker"]

    def wait_for(self, what: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
        end = time.monotonic() + timeout_s
        while not what():
            assert self.process.poll() is None, self.printed()
            assert time.monotonic() < end, self.printed()
            time.sleep(0.05)

    def code(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def printed(self) -> str:
        return self._printed.read_text()

    def pid_of(self, role: str, number: int) -> int:
        """The process of a member that joined last under its number."""
        found = [event for event in events(self.out) if event["event"] == "join" and (event["role"], event["id"]) == (role, number)]
        return int(str(found[-1]["pid"]))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


Start = Callable[..., Actors]


@pytest.fixture
def start(raylets: Raylets, tmp_path: Path) -> Iterator[Start]:
    started: list[Actors] = []

    def begin(*arguments: str, **options: object) -> Actors:
        folder = tmp_path / f"ray{len(started)}"
        folder.mkdir()
        started.append(Actors(raylets, folder, *arguments, **options))
        return started[-1]

    yield begin
    for run in started:
        run.close()
    raylets.shrink()
    assert raylets.is_clean(), raylets.pids("paceline.engine", "ray::Berth")


def test_two_raylets_end_with_the_same_bits_as_one_machine(raylets: Raylets, start: Start, tmp_path: Path) -> None:
    raylets.add(2)
    run = start("states", "0", script=SCRIPT, workers=3, servers=2, leases="static")
    assert run.code() == 0, run.printed()
    local = tmp_path / "local"
    done = paceline_run(SCRIPT, "states", "0", out=local, workers=3, servers=2, leases="static")
    assert done.returncode == 0, done.stderr
    assert (local / "final.safetensors").read_bytes() == (run.out / "final.safetensors").read_bytes()
    assert "[0] paceline: engine ray, because an actor of `paceline run --engine ray` started this process" in run.printed()
    assert read_summary(local)["ledger"] == read_summary(run.out)["ledger"]
    assert {path.name for path in run.out.rglob("*")} - {"ray.log"} == {path.name for path in local.rglob("*")}
    assert "BEGIN PACELINE JOB KEY" not in "".join(path.read_text(errors="replace") for path in run.out.rglob("*") if path.is_file())


@pytest.mark.slow
def test_models_on_a_device_end_with_the_same_bits(start: Start, tmp_path: Path) -> None:
    given = {"workers": 2, "servers": 1, "leases": "static"}
    run = start("states", "0", script=SCRIPTS / "staged.py", **given)
    assert run.code() == 0, run.printed()
    done = paceline_run(SCRIPT, "states", "0", out=tmp_path / "local", **given)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "local" / "final.safetensors").read_bytes() == (run.out / "final.safetensors").read_bytes()
    assert all("gradients came off the device" in (run.out / "logs" / f"worker-{worker}.log").read_text() for worker in range(2))


@pytest.mark.parametrize("pace", ["async", *(pytest.param(pace, marks=pytest.mark.slow) for pace in ("sync", "ssp:3", "hybrid"))])
def test_a_killed_raylet_is_a_leave_and_new_ones_bring_the_worker_back_and_another(
    pace: str, raylets: Raylets, start: Start, tmp_path: Path
) -> None:
    node, hurry = raylets.add(1), tmp_path / "hurry"
    run = start(str(hurry), "40", workers=3, min_workers=2, max_workers=4, servers=1, pace=pace)
    run.wait_for(lambda: sum(event["event"] == "update" for event in events(run.out)) >= 5)
    raylets.kill(node)
    run.wait_for(lambda: [event for event in events(run.out) if event["event"] == "leave"])
    assert sorted(run.joined()) == [0, 1, 2]
    raylets.add(2)
    run.wait_for(lambda: sorted(run.joined()) == [0, 1, 2, 2, 3])
    hurry.touch()
    assert run.code() == 0, run.printed()
    summary = read_summary(run.out)
    assert summary["ledger"] == {"once": 8000, "repeated": 0, "skipped": 0, "undone": 0}
    assert summary["lost"] == [2]
    assert all(summary["per_worker"][str(worker)]["samples"] for worker in range(4))
    ends = [(run.out / "logs" / f"worker-{worker}.log").read_text().splitlines()[-1] for worker in range(4)]
    assert len(set(ends)) == 1, ends
    assert ends[0].startswith("at the end [")
    assert "worker 2 was lost" in run.printed()
    assert "worker 2 on 127.0.0.1 is started again" in run.printed()


def test_without_a_servers_raylet_the_run_ends_with_code_4_and_names_who_was_lost(raylets: Raylets, start: Start, tmp_path: Path) -> None:
    node = raylets.add(2)
    # one server more than the first raylet has room for
    run = start(str(tmp_path / "never"), "40", workers=1, servers=4, pace="async")
    wait_for_updates(run.out, 3, run.process, TIMEOUT_S)
    members = [("worker", 0), *(("server", shard) for shard in range(4))]
    gone = [f"{role} {number}" for role, number in members if raylets.raylet_of(run.pid_of(role, number)) == raylets.pid_of(node)]
    assert [name for name in gone if name.startswith("server")]
    raylets.kill(node)
    assert run.code() == 4, run.printed()
    told = json.loads((run.out / "reason.json").read_text())
    assert told["exit"] == 4
    assert any(name in told["reason"] for name in gone), told
    assert read_summary(run.out)["exit"] == 4
    assert "Traceback" not in run.printed()


@pytest.mark.slow
def test_without_the_raylet_of_the_command_and_its_coordinator_the_run_ends_with_code_4_and_says_so(tmp_path: Path) -> None:
    raylets = Raylets(4)
    run = Actors(raylets, tmp_path, str(tmp_path / "never"), "40", workers=2, servers=1)
    try:
        wait_for_updates(run.out, 3, run.process, TIMEOUT_S)
        os.kill(raylets.pid_of(raylets.first), signal.SIGKILL)
        assert run.code() == 4, run.printed()
        told = json.loads((run.out / "reason.json").read_text())
        assert told["exit"] == read_summary(run.out)["exit"] == 4
        # servers and connection are lost with it at once
        assert told["reason"].startswith(("server 0 ", "the connection with Ray ")), told
        assert "was lost" in told["reason"]
        assert f"paceline: {told['reason']}" in run.printed()
        assert "Traceback" not in run.printed()
        assert raylets.is_clean(), raylets.pids("paceline.engine", "ray::Berth")
    finally:
        run.close()
        raylets.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)])
def test_a_signal_ends_everything_with_its_code(number: int, code: int, start: Start, tmp_path: Path) -> None:
    run = start(str(tmp_path / "never"), "40", workers=2, servers=1)
    wait_for_updates(run.out, 3, run.process, TIMEOUT_S)
    run.process.send_signal(number)
    assert run.code() == code, run.printed()
    assert json.loads((run.out / "reason.json").read_text())["exit"] == code
    assert "Traceback" not in run.printed()


@pytest.mark.slow
def test_a_killed_command_takes_broker_actors_and_processes_along(start: Start, tmp_path: Path) -> None:
    run = start(str(tmp_path / "never"), "40", workers=2, servers=1)
    wait_for_updates(run.out, 3, run.process, TIMEOUT_S)
    run.process.kill()


@pytest.mark.slow
def test_a_killed_worker_comes_back_and_what_a_script_raises_ends_the_run(start: Start, tmp_path: Path) -> None:
    hurry = tmp_path / "hurry"
    run = start(str(hurry), "40", workers=2, servers=1, pace="async")
    wait_for_updates(run.out, 3, run.process, TIMEOUT_S)
    os.kill(run.pid_of("worker", 1), signal.SIGKILL)
    run.wait_for(lambda: sorted(run.joined()) == [0, 1, 1])
    hurry.touch()
    assert run.code() == 0, run.printed()
    assert read_summary(run.out)["ledger"] == {"once": 8000, "repeated": 0, "skipped": 0, "undone": 0}
    raises = start("raise", "0", script=SCRIPT, workers=2, servers=1)
    assert raises.code() == 1
    assert "raised ValueError: on purpose" in raises.printed()
    assert json.loads((raises.out / "reason.json").read_text())["exit"] == 1


@pytest.mark.slow
def test_a_run_begins_with_those_that_have_room_and_without_room_it_ends_with_code_5(start: Start, tmp_path: Path) -> None:
    run = start("plain", "0", script=SCRIPT, workers=4, min_workers=1, servers=1)
    assert run.code() == 0, run.printed()
    assert "there is room for 2 workers of 4 now" in run.printed()
    assert read_summary(run.out)["workers"] == 2
    full = start("plain", "0", script=SCRIPT, workers=4, servers=1, patience="1s")
    assert full.code() == 5
    assert "the Ray cluster has no room for 1 servers and 4 workers of one CPU each" in full.printed()


@pytest.mark.slow
def test_a_cluster_of_its_own_is_gone_with_the_run(tmp_path: Path) -> None:
    done = paceline_run(SCRIPT, "plain", "0", out=tmp_path / "run", engine="ray", address="local", workers=2, servers=1, timeout_s=150)
    assert done.returncode == 0, done.stderr
    assert not list(Path("/tmp").glob("paceline-ray-*"))


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_the_parity_tests_pass_under_ray(raylets: Raylets) -> None:
    raylets.add(5)
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--timeout", "300", "-k", "not torchrun", "tests/e2e/test_parity.py"]
    under_ray = environment(PARITY_OPTIONS=json.dumps({"engine": "ray", "address": raylets.address}))
    assert subprocess.run(command, env=under_ray, cwd=SCRIPTS.parent.parent, timeout=2600, check=False).returncode == 0
    raylets.shrink()


def test_without_ray_the_engine_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"--engine ray needs the package ray, which is not installed: pip install 'paceline\[ray\]'"):
        cluster.check_installed()


def test_an_address_where_nobody_answers_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"--address: no Ray cluster answers at 127.0.0.1:1: Connection refused"):
        cluster.find_address("127.0.0.1:1")
    with pytest.raises(ConfigError, match="no Ray cluster runs here"):
        cluster.find_address("auto")
    assert cluster.find_address(None) is None
    left = tmp_path / "ray" / "ray_current_cluster"
    left.parent.mkdir()
    left.write_text("127.0.0.1:1")
    assert cluster.find_address(None) is None
    with socket.create_server(("127.0.0.1", 0)) as running:
        left.write_text(f"127.0.0.1:{running.getsockname()[1]}")
        assert cluster.find_address(None) == left.read_text()
    monkeypatch.setenv("RAY_ADDRESS", "ray://there:1")
    with pytest.raises(ConfigError, match="RAY_ADDRESS: no Ray cluster answers at ray://there:1"):
        cluster.find_address(None)
