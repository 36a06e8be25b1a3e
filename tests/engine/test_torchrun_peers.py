"""A peer that dies, stops or is cut off never hangs the others: on two real hosts, in every kind of pace.

Each host has one worker and its server; the coordinator is on the first host. With `servers` left open the small model
is all on server 0, so that the second host can be done without.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from netns import Host, namespaces
from paceline.trace.record import read_summary
from paceline.transport.keys import write_key_file
from ranks import Ranks

SILENCE_S = 6.0
ENDS_WITHIN_S = SILENCE_S + 30.0
"""The deadline that is stated for what falls silent, and the time that a loaded machine may take to tell it."""
PATIENCE_S = 30.0
"""On one host there is no heartbeat: who shares memory with what was stopped has patience with it."""
PACES = ("sync", "async", "ssp:3", "ksync:1", "hybrid")
STEP_S = "0.05"

Launched = Callable[..., Ranks]


@pytest.fixture
def hosts() -> Iterator[Sequence[Host]]:
    with namespaces() as made:
        yield made


@pytest.fixture
def started(launched: Launched, hosts: Sequence[Host], tmp_path: Path) -> Callable[..., Ranks]:
    """Starts a run of two ranks on the two hosts, and returns when it has made some updates."""
    key = tmp_path / "job.key"
    write_key_file(key)

    def start(pace: str, **settings: str) -> Ranks:
        ranks = launched("plain", STEP_S, size=2, on_each=1, hosts=hosts, pace=pace, key_file=str(key), silence=f"{SILENCE_S}s", **settings)
        ranks.wait_for_updates(3)
        return ranks

    return start


def strike(fault: str, pid: int, host: Host) -> None:
    """Let something happen to a process, or to the cable of its host."""
    if fault == "cut":
        host.cut()
    else:
        os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)


def some(cases: Sequence[tuple[str, str]]) -> list[object]:
    """Every case in every pace, of which only those given are fast enough for every run of the tests."""
    every = [(fault, pace) for fault in ("kill", "stop", "cut") for pace in PACES]
    return [pytest.param(*case, marks=() if case in cases else pytest.mark.slow) for case in every]


@pytest.mark.parametrize(("fault", "pace"), some([("cut", "hybrid")]))
def test_without_a_worker_the_others_go_on_and_do_its_samples(
    fault: str, pace: str, started: Callable[..., Ranks], hosts: Sequence[Host]
) -> None:
    ranks = started(pace)
    strike(fault, ranks.processes[1].pid, hosts[1])
    struck_s = time.monotonic()
    assert ranks.codes(of=[0]) == [0], ranks.printed(0)
    summary = read_summary(ranks.out)
    assert summary["ledger"] == {"once": 800, "repeated": 0, "skipped": 0, "undone": 0}
    assert summary["lost"] == [1]
    why = {"kill": "its connection ended", "stop": f"nothing was heard of it for {SILENCE_S:g} s", "cut": "nothing was heard of it"}[fault]
    assert f"worker 1 was lost ({why}" in ranks.printed(0)
    if fault == "cut":
        # what it would have needed is out of its reach
        assert ranks.codes(max(0.1, struck_s + ENDS_WITHIN_S - time.monotonic()), of=[1]) == [4]
        assert "coordinator" in ranks.printed(1) or "server 0" in ranks.printed(1)


@pytest.mark.parametrize(("fault", "pace"), some([("kill", "async")]))
def test_without_a_server_the_run_ends_and_names_it(fault: str, pace: str, started: Callable[..., Ranks], hosts: Sequence[Host]) -> None:
    ranks = started(pace, servers="2")
    strike(fault, ranks.child(1, "server_main"), hosts[1])
    assert ranks.codes(ENDS_WITHIN_S) == [4, 4], ranks.printed(0)
    assert "server 1 was lost" in ranks.printed(0)
    told = ranks.printed(1)
    assert "server 1" in told if fault != "cut" else "coordinator" in told or "server 0" in told, told
    assert ranks.left() == []


@pytest.mark.parametrize(("fault", "pace"), some([("kill", "ssp:3")]))
def test_without_the_coordinator_everybody_ends_and_names_it(
    fault: str, pace: str, started: Callable[..., Ranks], hosts: Sequence[Host]
) -> None:
    ranks = started(pace, servers="2", patience=f"{PATIENCE_S:g}s")
    strike(fault, ranks.child(0, "coordinator_main"), hosts[0])
    assert ranks.codes(ENDS_WITHIN_S, of=[1]) == [4], ranks.printed(1)
    assert ranks.codes(PATIENCE_S + ENDS_WITHIN_S, of=[0]) == [4], ranks.printed(0)
    for rank in range(2):
        told = ranks.printed(rank)
        # of a cable that is cut each side names whom it has lost of the other one
        assert "coordinator" in told or (fault == "cut" and ("server 1 was lost" in told or "server 0" in told)), told
        assert "Traceback" not in told
    assert ranks.left() == []
