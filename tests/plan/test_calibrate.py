"""Cluster files from measurements: this machine, a script on it, the workers of a run."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from launch import paceline_run
from paceline.cli import main
from paceline.engine.virtual import run
from paceline.engine.virtual.cluster_file import read_cluster
from paceline.errors import ConfigError
from paceline.plan.calibrate import machine_cluster, run_cluster, write_cluster
from paceline.plan.doctor.facts import Facts
from paceline.plan.doctor.findings import Host, Report, SampleTime, Visit, Way
from paceline.plan.machine import Machine, measure_machine
from paceline.plan.profile import Profile
from paceline.plan.regions import hosts_cluster
from planned import spirals

MACHINE = Machine(4, 8e9, 4e9, 3e9, 50e-6, 60e-6)


def past(folder: Path, *, sample_s: list[float], spread: float = 0.0, wait_s: float = 0.0, lost: tuple[int, ...] = ()) -> Path:
    """The directory of a run of batches of 10 that was over after 200 steps of each worker."""
    chance, rows, t_s = random.Random(0), list[dict[str, Any]](), [0.0] * len(sample_s)
    for _ in range(200):
        for worker, one in enumerate(sample_s):
            t_s[worker] += 10 * one * chance.lognormvariate(0.0, spread)
            rows.append({"event": "update", "t_s": t_s[worker], "members": [{"worker": worker, "step": 1, "staleness": 0, "weight": 1.0}]})
    workers = {
        str(worker): {"samples": 2000, "steps": 200, "refused": 0, "compute_s": 2000 * one, "wait_s": wait_s}
        for worker, one in enumerate(sample_s)
    }
    folder.mkdir()
    (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["t_s"])))
    (folder / "summary.json").write_text(json.dumps({"per_worker": workers, "lost": lost, "wall_s": max(t_s)}))
    return folder


def test_a_measured_machine_is_plausible() -> None:
    found = measure_machine()
    assert found.cores == len(os.sched_getaffinity(0))
    for rate in (found.memory_bytes_per_s, found.unix_bytes_per_s, found.tcp_bytes_per_s):
        assert 1e7 < rate < 1e13
    for answer_s in (found.unix_answer_s, found.tcp_answer_s):
        assert 1e-7 < answer_s < 0.1


def test_a_machine_becomes_a_cluster_with_its_numbers(tmp_path: Path) -> None:
    profile = Profile(1, 100, 10, 2e-3, 1.8e-3, 2.2e-3, 4, 0, "SGD", 0, 0, {})
    write_cluster(machine_cluster(MACHINE, profile), tmp_path / "cluster.toml")
    cluster = read_cluster(str(tmp_path / "cluster.toml")).cluster
    assert (cluster.default_workers, cluster.servers.hosts) == (4, "with workers")
    assert (cluster.network.bandwidth, cluster.network.inside_bandwidth) == (3e9, 8e9)
    assert (cluster.network.latency, cluster.network.inside_latency) == (pytest.approx(30e-6), pytest.approx(25e-6))
    (group,) = cluster.workers
    assert (group.count, group.per_host, group.compute, group.factor) == (4, 4, pytest.approx(2e-3), "lognormal")
    assert group.spread == pytest.approx(0.149, abs=0.001)


def test_workers_that_are_alike_are_one_group_and_a_slow_one_another(tmp_path: Path) -> None:
    found = run_cluster(past(tmp_path / "run", sample_s=[1e-3, 1.05e-3, 3e-3, 1e-3], spread=0.1), MACHINE)
    write_cluster(found, tmp_path / "cluster.toml")
    cluster = read_cluster(str(tmp_path / "cluster.toml")).cluster
    assert [(group.count, group.compute) for group in cluster.workers] == [
        (2, pytest.approx(1.025e-3)),
        (1, pytest.approx(3e-3)),
        (1, pytest.approx(1e-3)),
    ]
    # of an interval between two gradients, which is one step
    assert all(group.spread == pytest.approx(0.1, rel=0.2) for group in cluster.workers)


def test_no_spread_is_told_from_workers_that_waited(tmp_path: Path) -> None:
    found = run_cluster(past(tmp_path / "run", sample_s=[1e-3] * 2, spread=0.3, wait_s=1.0), MACHINE)
    assert [group.get("factor") for group in found["workers"]] == [None]


def test_workers_that_were_lost_tell_how_often_one_fails(tmp_path: Path) -> None:
    found = run_cluster(past(tmp_path / "run", sample_s=[1e-3] * 4, lost=(1, 3)), MACHINE)
    write_cluster(found, tmp_path / "cluster.toml")
    assert read_cluster(str(tmp_path / "cluster.toml")).cluster.workers[0].mtbf == pytest.approx(4 * 2.0 / 2)


def running(folder: Path, *, decisions: bool) -> Path:
    """The directory of a run of two workers on two hosts that still goes on: batches of 10, of 10 ms and 30 ms."""
    rows: list[dict[str, Any]] = [
        {"event": "join", "t_s": 0.1, "role": "worker", "id": worker, "worker": worker, "pid": 1, "host": f"host{worker}"}
        for worker in range(2)
    ]
    for step in range(1, 40):
        members = [{"worker": worker, "step": step, "staleness": 0, "weight": 1.0} for worker in range(2 if step % 3 == 0 else 1)]
        rows.append({"event": "update", "t_s": 0.01 * step, "samples": 10 * (step + step // 3), "members": members})
    folder.mkdir()
    (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"event": "upd')
    if decisions:
        workers = [{"id": worker, "compute_s": 0.02 * (worker + 1), "step_samples": 10.0, "steps_s": [0.02] * 12} for worker in range(2)]
        decision = {"event": "decision", "t_s": 0.2, "signals": {"workers": workers}}
        (folder / "decisions.jsonl").write_text(json.dumps(decision) + "\n")
    return folder


def test_a_run_that_goes_on_is_measured_as_its_policy_saw_it_last(tmp_path: Path) -> None:
    found = run_cluster(running(tmp_path / "run", decisions=True), MACHINE)
    assert "run, on 2 machines, with a network that was not measured; it has no summary, so it is still running" in found["about"]
    write_cluster(found, tmp_path / "cluster.toml")
    groups = read_cluster(str(tmp_path / "cluster.toml")).cluster.workers
    assert [(group.count, group.per_host, group.compute) for group in groups] == [(1, 1, pytest.approx(2e-3)), (1, 1, pytest.approx(4e-3))]


def test_without_a_policy_it_is_measured_by_the_intervals_of_its_gradients(tmp_path: Path) -> None:
    found = run_cluster(running(tmp_path / "run", decisions=False), MACHINE)
    assert "times are with waits" in found["about"]
    write_cluster(found, tmp_path / "cluster.toml")
    groups = read_cluster(str(tmp_path / "cluster.toml")).cluster.workers
    assert [group.compute for group in groups] == [pytest.approx(1e-3), pytest.approx(3e-3)]


# --- hosts -----------------------------------------------------------------------------------------------


def checked(latencies_s: dict[tuple[int, int], float], rates: dict[tuple[int, int], float], **other: Any) -> Report:
    """Hosts of two processes each, and what lies between the pairs of them."""
    ranks = sorted({rank for pair in latencies_s for rank in pair})
    hosts = tuple(Host(rank, 2, Facts(name=f"host{rank}"), machine=MACHINE, **other) for rank in ranks)
    visits = [
        Visit(*way, (Way("eth0", "10.0.0.1", round_trip_s=2 * latency_s, bytes_per_s=1.0),), "10.0.0.1", 1.0, rates[pair], rates[pair] / 2)
        for pair, latency_s in latencies_s.items()
        for way in (pair, pair[::-1])
    ]
    return Report("a test", hosts, tuple(visits))


def of_pairs(ranks: range, value: Callable[[int, int], float]) -> dict[tuple[int, int], float]:
    return {pair: value(*pair) for pair in combinations(ranks, 2)}


def test_hosts_an_ocean_apart_are_regions_with_what_lies_between_them(tmp_path: Path) -> None:
    pairs = range(4)
    apart = of_pairs(pairs, lambda one, other: 1e-4 if one // 2 == other // 2 else 4e-2)
    rates = of_pairs(pairs, lambda one, other: 1e9 if one // 2 == other // 2 else 1e8)
    write_cluster(hosts_cluster(checked(apart, rates)), tmp_path / "cluster.toml")
    cluster = read_cluster(str(tmp_path / "cluster.toml")).cluster
    assert [(group.count, group.per_host, group.region) for group in cluster.workers] == [(4, 2, "region-1"), (4, 2, "region-2")]
    (between,) = cluster.network.between
    assert (between.latency, between.bandwidth) == (pytest.approx(4e-2), pytest.approx(1e8))
    assert (cluster.network.latency, cluster.network.bandwidth) == (pytest.approx(1e-4), pytest.approx(1e9))
    assert (cluster.servers.count, cluster.servers.hosts, cluster.servers.region) == (4, "with workers", "region-1")


def test_a_host_with_a_slow_link_is_a_group_of_its_own_in_the_same_region(tmp_path: Path) -> None:
    ranks = range(4)
    rates = of_pairs(ranks, lambda _, other: 1e7 if other == 3 else 1e9)
    times = SampleTime(2e-3, 1.9e-3, 2.1e-3)
    write_cluster(hosts_cluster(checked(of_pairs(ranks, lambda _, __: 1e-4), rates, sample=times)), tmp_path / "cluster.toml")
    cluster = read_cluster(str(tmp_path / "cluster.toml")).cluster
    assert [(group.count, group.region, group.bandwidth) for group in cluster.workers] == [(6, "", None), (2, "", pytest.approx(1e7))]
    assert not cluster.network.between
    assert all(group.compute == pytest.approx(2e-3) for group in cluster.workers)
    assert "guess" not in cluster.about


def test_hosts_that_were_not_measured_are_no_cluster() -> None:
    report = checked({(0, 1): 1e-4}, {(0, 1): 1e9})
    with pytest.raises(ConfigError, match="nothing was measured between rank 0 and rank 1: `paceline doctor` tells why"):
        hosts_cluster(replace(report, visits=()))
    with pytest.raises(ConfigError, match="one host only"):
        hosts_cluster(replace(report, hosts=report.hosts[:1]))


@pytest.mark.slow
def test_a_run_on_this_machine_becomes_its_cluster_and_the_virtual_run_is_as_fast(tmp_path: Path) -> None:
    """Two workers with recorded steps of 20 ms, one of them three times as slow."""
    script, times = spirals(tmp_path, samples=480, epochs=2), tmp_path / "times"
    times.write_text("0.02\n")
    out, file = tmp_path / "run", tmp_path / "cluster.toml"
    told = {"workers": 2, "servers": 1, "pace": "async", "compute": f"recorded:{times}", "slow": "1=3"}
    assert paceline_run(script, out=out, timeout_s=60, **told).returncode == 0
    assert main(["calibrate", str(out), "--out", str(file)]) == 0
    fast, slow = read_cluster(str(file)).cluster.workers
    assert fast.compute == pytest.approx(0.02 / 16, rel=0.25)
    assert slow.compute / fast.compute == pytest.approx(3.0, rel=0.25)
    code, virtual = run(script, out=tmp_path / "virtual", cluster=str(file), pace="async")
    assert code == 0
    real_s, virtual_s = (
        json.loads((folder / "summary.json").read_text())[key] for folder, key in ((out, "wall_s"), (virtual, "virtual_s"))
    )
    assert virtual_s == pytest.approx(real_s, rel=0.35)


def test_a_script_is_timed_where_it_is_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.toml"
    assert main(["calibrate", "--script", str(spirals(tmp_path, samples=480)), "--out", str(file)]) == 0
    assert 1e-6 < read_cluster(str(file)).cluster.workers[0].compute < 0.01
    assert f"{file} is written: name it in --cluster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["nowhere"], "nowhere is not the directory of a run: it does not exist"),
        (["EMPTY"], "has no worker with a folded sample and a time"),
        (["VIRTUAL"], "was a virtual run: its cluster is"),
        (["IDLE"], "has no worker with a folded sample and a time"),
        (["one", "two"], "calibrate takes the directory of one run, got 2: one, two"),
        (["--script", "nowhere.py"], "the script nowhere.py does not exist"),
        (["--out", "EMPTY"], "is there already, name a file that is not"),
        (["--out", "nowhere/cluster.toml"], "--out: nowhere is not a directory, name a file in one that is there"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str) -> None:
    summaries: dict[str, object] = {"EMPTY": None, "VIRTUAL": {"engine": "virtual"}, "IDLE": {"per_worker": {}}}
    for name, summary in summaries.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").write_text("")
        if summary is not None:
            (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    given = [str(tmp_path / word) if word in summaries else word for word in options]
    out = [] if "--out" in given else ["--out", str(tmp_path / "cluster.toml")]
    assert main(["calibrate", *given, *out]) == 2
    *before, last = capsys.readouterr().err.splitlines()
    assert last.startswith("paceline: ")
    assert says in last
    assert not before or options[0] in summaries, "it is told before anything is measured"
    assert not (tmp_path / "cluster.toml").exists()
