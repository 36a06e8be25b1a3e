"""The collective route with real processes: workers die, the pace changes, and both routes come to the same model."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launch import SCRIPTS, paceline_run, paceline_without, pid_of, routes
from paceline.session.sums import STOPS

SAMPLES = 600


def is_folded_once(value: float, num_workers: int) -> bool:
    """Whether `value` is (1 + tag) / n of one computation in an update of n samples (see counting.py)."""
    tags = [2.0 ** -(1 + power) for power in range(num_workers * 5)]
    return any(abs(value * n - 1 - tag) < 1e-5 * n for n in range(1, 4 * num_workers + 1) for tag in tags)


def counts(out: Path) -> list[float]:
    """What each sample's parameter has come to."""
    return (-load_file(out / "final.safetensors")["count"].to(torch.float64)).flatten().tolist()


def listening(pid: int) -> list[str]:
    """The TCP addresses that a process listens at, as /proc has them."""
    sockets = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.slow)])  # 0 has convened the group
def test_a_group_goes_on_without_a_killed_worker_and_folds_every_sample_once(killed: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options: dict[str, object] = {"workers": 3, "route": "collective", "lr_rule": "none"}

    def check_addresses() -> None:
        loopback = socket.inet_aton("127.0.0.1")[::-1].hex().upper()
        addresses = [address for worker in range(3) for address in listening(pid_of(out, worker))]
        assert len(addresses) >= 1
        assert all(address.startswith(loopback) for address in addresses), f"the group listens at {addresses}"

    script = (SCRIPTS / "counting.py", str(SAMPLES), "1", "1", "0.01")
    paceline_without(killed, *script, out=out, updates=10, before=check_addresses, **options)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["lost"], summary["ledger"]["once"], summary["ledger"]["skipped"]) == ([killed], SAMPLES, 0)
    assert [at for at, value in enumerate(counts(out)) if not is_folded_once(value, 3)] == []
    others = [worker for worker in range(3) if worker != killed]
    assert routes(out) == [("collective", [0, 1, 2]), ("collective", others), ("servers", None)]


def test_the_last_one_of_a_group_goes_on_alone_with_the_gradient_that_it_has(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options: dict[str, object] = {"workers": 2, "route": "collective", "lr_rule": "none"}
    paceline_without(0, SCRIPTS / "counting.py", str(SAMPLES // 2), "1", "1", "0.01", out=out, updates=10, **options)
    assert [at for at, value in enumerate(counts(out)) if not is_folded_once(value, 2)] == []
    assert routes(out)[:2] == [("collective", [0, 1]), ("collective", [1])]


def test_a_schedule_moves_between_the_group_and_the_servers_with_nothing_lost(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options: dict[str, object] = {"workers": 2, "servers": 2, "route": "collective", "lr_rule": "none"}
    paces = "hybrid:sync@0,async,weighting=none@0.3,sync@0.6"
    done = paceline_run(SCRIPTS / "counting.py", str(SAMPLES), "1", "1", "0.001", out=out, pace=paces, **options)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ledger"] == {"once": SAMPLES, "repeated": 0, "skipped": 0, "undone": 0}
    assert [at for at, value in enumerate(counts(out)) if not is_folded_once(value, 2)] == []
    assert [route for route, _ in routes(out)] == ["collective", "servers", "collective", "servers"]
    # nobody stopped to guess, as one does who is wrong three times
    assert not any(STOPS in log.read_text() for log in (out / "logs").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True])
def test_models_on_a_device_end_with_the_same_bits_wherever_their_shards_are(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        monkeypatch.setenv("SHARDS_THERE", "1")
    finals: list[bytes] = []
    for script in ("launched.py", "staged.py"):
        out = tmp_path / script
        options: dict[str, object] = {"workers": 2, "leases": "static", "route": "collective"}
        done = paceline_run(SCRIPTS / script, "states", "0", out=out, **options)
        assert done.returncode == 0, done.stderr
        finals.append((out / "final.safetensors").read_bytes())
    assert finals[0] == finals[1]


@pytest.mark.slow
def test_a_model_on_the_device_of_its_shards_goes_to_the_servers_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDS_THERE", "1")
    options: dict[str, object] = {"workers": 2, "route": "collective"}
    paces = "hybrid:sync@0,async@0.3,sync@0.6"
    done = paceline_run(SCRIPTS / "staged.py", "plain", "0", out=tmp_path / "run", pace=paces, **options)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ledger"]["once"] == 800
    assert [route for route, _ in routes(tmp_path / "run")] == ["collective", "servers", "collective", "servers"]
    accuracies = [line.split(" has ")[1] for line in done.stdout.splitlines() if " has " in line]
    assert len(set(accuracies)) == 1


def test_both_routes_come_to_the_same_model(tmp_path: Path) -> None:
    finals: list[dict[str, torch.Tensor]] = []
    for route in ("servers", "collective"):
        out = tmp_path / route
        done = paceline_run(SCRIPTS / "everything.py", out=out, workers=2, servers=2, pace="sync", leases="static", route=route)
        assert done.returncode == 0, done.stderr
        finals.append(load_file(out / "final.safetensors"))
    assert routes(tmp_path / "servers") == []
    assert routes(tmp_path / "collective") == [("collective", [0, 1]), ("servers", None)]
    for name, ours in finals[0].items():
        theirs = finals[1][name]
        assert torch.allclose(ours.double(), theirs.double(), rtol=1e-6, atol=1e-6), f"{name}: {ours} against {theirs}"
