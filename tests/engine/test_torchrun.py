"""Scripts under a launcher: found, trained over TCP with the same result as on one machine, and ended in every way."""

from __future__ import annotations

import json
import signal
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from launch import SCRIPTS, events, paceline_run
from netns import namespaces
from paceline.trace.record import read_summary
from paceline.transport.keys import read_key_file, write_key_file
from ranks import SCRIPT, Ranks, torchrun_on

Launched = Callable[..., Ranks]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on one machine, and what it printed."""
    out = tmp_path_factory.mktemp("local") / "run"
    done = paceline_run(SCRIPT, "states", "0", out=out, workers=4, servers=2, leases="static")
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.mark.parametrize("same_host", ["memory", *(pytest.param(way, marks=pytest.mark.slow) for way in ("tcp", "hosts"))])
def test_two_hosts_of_two_end_with_the_same_bits_as_one_machine(same_host: str, launched: Launched, local: tuple[Path, str]) -> None:
    ranks = launched("states", "0", same_host=same_host, servers="2", leases="static")
    assert ranks.codes() == [0] * 4, ranks.printed(0)
    assert (local[0] / "final.safetensors").read_bytes() == (ranks.out / "final.safetensors").read_bytes()
    ends = [ranks.printed(rank).split(f"rank {rank} has ")[1].split("\n")[0] for rank in range(4)]
    assert len(set(ends)) == 1
    assert f"has {ends[0]}" in local[1]
    assert "no memory is shared" not in "".join(ranks.printed(rank) for rank in range(4))
    assert "engine torchrun, because a launcher has set RANK and WORLD_SIZE: worker 3 of 4" in ranks.printed(3)


@pytest.mark.slow
@pytest.mark.parametrize("same_host", ["tcp", "memory"])
def test_models_on_a_device_end_with_the_same_bits(same_host: str, launched: Launched, local: tuple[Path, str]) -> None:
    ranks = launched("states", "0", script=SCRIPTS / "staged.py", same_host=same_host, servers="2", leases="static")
    assert ranks.codes() == [0] * 4, ranks.printed(0)
    assert (local[0] / "final.safetensors").read_bytes() == (ranks.out / "final.safetensors").read_bytes()
    # six of the model's parameters are trained, ten steps in each of two epochs
    assert all(int(ranks.printed(rank).split(" gradients came off the device")[0].split()[-1]) >= 120 for rank in range(4))


@pytest.mark.parametrize("pace", [*(pytest.param(pace, marks=pytest.mark.slow) for pace in ("async", "ssp:3")), "hybrid"])
def test_every_kind_of_pace_counts_every_sample_once(pace: str, launched: Launched) -> None:
    ranks = launched("plain", "0", size=2, pace=pace)
    assert ranks.codes() == [0, 0], ranks.printed(0)
    assert read_summary(ranks.out)["ledger"] == {"once": 800, "repeated": 0, "skipped": 0, "undone": 0}
    assert "every sample once" in ranks.printed(0)


@pytest.mark.parametrize("route", ["auto", "collective"])
def test_where_no_memory_is_shared_workers_may_sum_among_themselves(route: str, launched: Launched) -> None:
    ranks = launched("plain", "0", size=2, on_each=1, same_host="tcp", route=route)
    assert ranks.codes() == [0, 0], ranks.printed(0)
    assert read_summary(ranks.out)["ledger"] == {"once": 800, "repeated": 0, "skipped": 0, "undone": 0}
    told = [event["route"] for event in events(ranks.out) if event["event"] == "route"]
    assert told == ["collective", "servers"]
    measured = "summing a gradient in the group takes"
    assert (measured in ranks.printed(0)) == (route == "auto")


def test_with_a_key_file_the_settings_and_all_traffic_are_proved(launched: Launched, tmp_path: Path) -> None:
    key = tmp_path / "job.key"
    write_key_file(key)
    ranks = launched("plain", "0.02", size=2, on_each=1, same_host="tcp", key_file=str(key), wire="tls")
    ranks.wait_for_updates(3)
    processes = [Path("/proc", str(pid)) for pid in (*(process.pid for process in ranks.processes), *ranks.left())]
    assert len(processes) >= 5
    shown = [(folder / name).read_bytes() for folder in processes for name in ("cmdline", "environ")]
    assert all(str(key).encode() in environ for environ in shown[1::2])
    assert ranks.codes() == [0, 0], ranks.printed(0)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != key]
    assert (ranks.out / "report.html").read_bytes() in written
    for secret in secrets_of(key):
        assert not any(secret in what for what in (*shown, *written))


def secrets_of(key: Path) -> list[bytes]:
    """What of a key file must never be seen, in every form that somebody may have written it in."""
    secret = read_key_file(key).secret
    private = key.read_bytes().split(b"-----BEGIN PRIVATE KEY-----\n")[1].split(b"\n")[:2]
    return [secret, secret.hex().encode(), b64encode(secret), urlsafe_b64encode(secret), repr(secret)[2:-1].encode(), *private]


@pytest.mark.parametrize("pace", [pytest.param("sync", marks=pytest.mark.slow), "async"])
def test_a_killed_worker_is_a_leave_and_the_others_do_its_samples(pace: str, launched: Launched) -> None:
    ranks = launched("plain", "0.02", size=3, on_each=3, pace=pace)
    ranks.wait_for_updates(5)
    ranks.processes[2].kill()
    assert ranks.codes() == [0, 0, -signal.SIGKILL], ranks.printed(0)
    summary = read_summary(ranks.out)
    assert summary["ledger"] == {"once": 800, "repeated": 0, "skipped": 0, "undone": 0}
    assert summary["lost"] == [2]
    assert "worker 2 was lost (its connection ended) and has left, the others go on" in ranks.printed(0)


@pytest.mark.parametrize(("rank", "names"), [(0, ("rank 0", "server 0")), pytest.param(2, ("server 1",), marks=pytest.mark.slow)])
def test_without_a_hosts_first_worker_the_others_end_and_name_who_was_lost(rank: int, names: tuple[str, ...], launched: Launched) -> None:
    ranks = launched("plain", "0.02", servers="2")
    ranks.wait_for_updates(3)
    ranks.processes[rank].kill()
    codes = ranks.codes()
    assert codes.pop(rank) == -signal.SIGKILL
    assert codes == [4, 4, 4]
    assert any(f"{name} was lost" in ranks.printed(1) for name in names), ranks.printed(1)
    assert ranks.left() == []


def test_sigterm_ends_all_with_143_and_a_reason(launched: Launched) -> None:
    ranks = launched("plain", "0.02", size=3, on_each=3)
    ranks.wait_for_updates(3)
    ranks.processes[1].terminate()
    assert ranks.codes() == [143, 143, 143]
    assert json.loads((ranks.out / "reason.json").read_text()) == {"exit": 143, "reason": "worker 1 was terminated by SIGTERM"}
    assert read_summary(ranks.out)["exit"] == 143
    assert "Traceback" not in "".join(ranks.printed(rank) for rank in range(3))


def test_what_a_script_raises_reaches_the_launcher_the_others_and_the_run_directory(launched: Launched) -> None:
    ranks = launched("raise", "0", size=2)
    assert ranks.codes() == [1, 1]
    told = json.loads(Path(f"{ranks.out}-error-1.json").read_text())["message"]
    assert told["message"] == "ValueError: on purpose"
    assert "launched.py" in told["extraInfo"]["py_callstack"]
    assert int(told["extraInfo"]["timestamp"]) > 0
    assert json.loads((ranks.out / "reason.json").read_text())["reason"].endswith("launched.py raised ValueError: on purpose")
    assert "raised ValueError: on purpose" in ranks.printed(0)
    assert "Traceback" not in ranks.printed(0)


def test_a_script_that_never_prepares_is_told_and_fails(launched: Launched) -> None:
    ranks = launched("early", "0", size=2)
    assert ranks.codes() == [1, 1]
    assert "ended without calling run.prepare" in ranks.printed(1)


def test_what_rank_0_refuses_every_rank_tells(launched: Launched) -> None:
    ranks = launched("plain", "0", size=2, workers="3")
    assert ranks.codes() == [2, 2]
    for rank in range(2):
        assert "PACELINE_WORKERS: workers 3 is not allowed, a launcher has started 2 processes" in ranks.printed(rank)
        assert "Traceback" not in ranks.printed(rank)


@pytest.mark.slow
def test_torchrun_itself_on_two_hosts_with_two_each_ends_with_the_same_bits(local: tuple[Path, str], tmp_path: Path) -> None:
    key, out = tmp_path / "job.key", tmp_path / "run"
    write_key_file(key)
    told = {"PACELINE_OUT": str(out), "PACELINE_PACE": "sync", "PACELINE_LEASES": "static", "PACELINE_SERVERS": "2"}
    with namespaces() as hosts:
        assert torchrun_on(hosts, SCRIPT, "states", "0", on_each=2, **told, PACELINE_KEY_FILE=str(key)) == [0, 0]
    assert (local[0] / "final.safetensors").read_bytes() == (out / "final.safetensors").read_bytes()
    assert read_summary(out)["ledger"] == {"once": 800, "repeated": 0, "skipped": 0, "undone": 0}
    assert (out / "report.html").exists()
