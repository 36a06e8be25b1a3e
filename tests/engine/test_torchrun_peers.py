"""A peer that dies, stops or is cut off never hangs the others: on two real hosts, in every kind of pace.

Each host has one worker and its server; the coordinator is on the first host. With `servers` left open the small model
is all on server 0, so that the second host can be done without.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from paceline.trace.record import read_summary
from ranks import ENDS_WITHIN_S, PATIENCE_S, SILENCE_S, Ranks

PACES = ("sync", "async", "ssp:3", "ksync:1", "hybrid")
SCRIPT = ("plain", "0.05")

Launched = Callable[..., Ranks]


def some(cases: Sequence[tuple[str, str]]) -> list[object]:
    """Every case in every pace, of which only those given are fast enough for every run of the tests."""
    every = [(fault, pace) for fault in ("kill", "stop", "cut") for pace in PACES]
    return [pytest.param(*case, marks=() if case in cases else pytest.mark.slow) for case in every]


@pytest.mark.parametrize(("fault", "pace"), some([("cut", "hybrid")]))
def test_without_a_worker_the_others_go_on_and_do_its_samples(fault: str, pace: str, far_apart: Launched) -> None:
    ranks = far_apart(*SCRIPT, pace=pace)
    ranks.strike(fault, 1)
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
def test_without_a_server_the_run_ends_and_names_it(fault: str, pace: str, far_apart: Launched) -> None:
    ranks = far_apart(*SCRIPT, pace=pace, servers="2")
    ranks.strike(fault, 1, "server_main")
    ranks.check_end_without_server(fault)


@pytest.mark.parametrize(("fault", "pace"), some([("kill", "ssp:3")]))
def test_without_the_coordinator_everybody_ends_and_names_it(fault: str, pace: str, far_apart: Launched) -> None:
    ranks = far_apart(*SCRIPT, pace=pace, servers="2", patience=f"{PATIENCE_S:g}s")
    ranks.strike(fault, 0, "coordinator_main")
    ranks.check_end_without_coordinator(fault)
