"""A peer that dies, stops or is cut off never hangs a group of workers that sum among themselves: on real hosts, and at every moment.

Each host has one worker and its server; the coordinator is on the first host. What is said in test_torchrun_peers.py holds here as well.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from launch import SCRIPTS, routes
from paceline.trace.record import read_summary
from ranks import ENDS_WITHIN_S, PATIENCE_S, SILENCE_S, Ranks

PACES = ("sync", "hybrid", "hybrid:sync@0,async@0.8")
QUICK, STEADY = ("plain", "0.05"), ("plain", "0.3")
"""The second one takes longer than a silence."""
ALL_ONCE = {"once": 800, "repeated": 0, "skipped": 0, "undone": 0}
WHY = {"kill": "its connection ended", "stop": f"nothing was heard of it for {SILENCE_S:g} s", "cut": "nothing was heard of it"}

Launched = Callable[..., Ranks]
pytestmark = pytest.mark.timeout(240.0)  # three processes begin, some fall silent, and those that are woken end


def some(*fast: tuple[str, str]) -> list[object]:
    """Every fault in every pace that a group is in force in; those given are fast enough for every run of the tests."""
    every = [(fault, pace) for fault in WHY for pace in PACES]
    return [pytest.param(*case, marks=() if case in fast else pytest.mark.slow) for case in every]


def told(ranks: Ranks) -> str:
    """What all ranks have printed, none of them a traceback."""
    printed = "".join(ranks.printed(rank) for rank in range(len(ranks.processes)))
    assert "Traceback" not in printed
    return printed


def check_woken(ranks: Ranks, rank: int) -> None:
    """One who was stopped, and is woken when the others have gone on, ends and names whom it has lost."""
    os.kill(ranks.processes[rank].pid, signal.SIGCONT)
    assert ranks.codes(ENDS_WITHIN_S, of=[rank]) == [4], ranks.printed(rank)
    assert "coordinator" in ranks.printed(rank)


@pytest.mark.parametrize(("fault", "pace"), some(("kill", "sync")))
def test_without_a_member_the_others_sum_in_a_group_of_their_own(fault: str, pace: str, far_apart: Launched) -> None:
    ranks = far_apart(*QUICK, size=3, pace=pace, route="collective")
    ranks.strike(fault, 1)
    assert ranks.codes(ENDS_WITHIN_S, of=[0, 2]) == [0, 0], ranks.printed(0)
    summary = read_summary(ranks.out)
    assert (summary["ledger"], summary["lost"]) == (ALL_ONCE, [1])
    assert routes(ranks.out)[:2] == [("collective", [0, 1, 2]), ("collective", [0, 2])]
    assert routes(ranks.out)[-1] == ("servers", None)
    assert f"worker 1 was lost ({WHY[fault]}" in told(ranks)
    if fault == "stop":
        check_woken(ranks, 1)
    elif fault == "cut":
        # what it would have needed is out of its reach
        assert ranks.codes(ENDS_WITHIN_S, of=[1]) == [4]
        assert "coordinator" in ranks.printed(1) or "server 0" in ranks.printed(1)
    assert ranks.left() == []


@pytest.mark.parametrize(("fault", "pace"), some())
def test_without_a_server_the_run_ends_and_names_it(fault: str, pace: str, far_apart: Launched) -> None:
    ranks = far_apart(*STEADY, pace=pace, route="collective", servers="2")
    ranks.strike(fault, 1, "server_main")
    ranks.check_end_without_server(fault)


@pytest.mark.slow
@pytest.mark.parametrize("route", ["collective", "servers"])
def test_a_server_that_stands_still_at_the_end_keeps_no_rank_alive(route: str, far_apart: Launched) -> None:
    ranks = far_apart(*QUICK, pace="sync", route=route, servers="2", silence="15s")
    ranks.wait_for_updates(38)  # the run is over before anybody notices
    ranks.strike("stop", 1, "server_main")
    assert ranks.codes(ENDS_WITHIN_S + 15.0, of=[0]) == [4]
    assert ranks.codes(ENDS_WITHIN_S, of=[1]) in ([0], [4])
    assert "server 1 was lost" in told(ranks)
    assert ranks.left() == []


@pytest.mark.parametrize(("fault", "pace"), some())
def test_without_the_coordinator_everybody_ends_and_names_it(fault: str, pace: str, far_apart: Launched) -> None:
    ranks = far_apart(*STEADY, pace=pace, route="collective", servers="2", patience=f"{PATIENCE_S:g}s")
    ranks.strike(fault, 0, "coordinator_main")
    ranks.check_end_without_coordinator(fault)


MOMENTS = [
    ("1:meet:1:KILL", [0, 2]),
    ("1:meet:1:STOP", [0, 2]),
    ("0:convene:1:STOP", [1, 2]),
    ("0:meet:1:STOP", [1, 2]),
    ("1:leave:1:KILL", [0, 2]),
    ("1:leave:1:STOP", [0, 2]),
    ("0:leave:1:STOP", [1, 2]),
    ("1:sum:1:KILL", [0, 2]),
    ("1:sum:1:STOP", [0, 2]),
    ("2:sum:1:KILL 1:meet:2:STOP", [0]),
    ("2:leave:1:STOP 0:meet:2:STOP", [1]),
]
"""Who is struck when (see scripts/struck.py), and who goes on. The first one of a group convenes it."""


@pytest.mark.parametrize(
    ("strikes", "others"), [pytest.param(*case, marks=() if case[0] == "1:leave:1:KILL" else pytest.mark.slow) for case in MOMENTS]
)
def test_who_is_struck_while_the_group_meets_or_sums_is_left_out(strikes: str, others: list[int], launched: Launched) -> None:
    options = {"same_host": "tcp", "route": "collective", "silence": f"{SILENCE_S}s"}
    ranks = launched("0.05", *strikes.split(), size=3, on_each=3, script=SCRIPTS / "struck.py", **options)
    struck = [strike.split(":") for strike in strikes.split()]
    for who, moment, _, _ in struck:
        ranks.wait_for_word(int(who), f"rank {who} is struck: {moment}")
    assert ranks.codes(ENDS_WITHIN_S, of=others) == [0] * len(others), ranks.printed(0)
    summary = read_summary(ranks.out)
    assert (summary["ledger"], sorted(summary["lost"])) == (ALL_ONCE, [worker for worker in range(3) if worker not in others])
    assert routes(ranks.out)[-2:] == [("collective", others), ("servers", None)]
    for who, _, _, name in struck:
        if name == "STOP":
            check_woken(ranks, int(who))
    assert "route servers from now on" not in told(ranks)
    assert ranks.left() == []
