"""A launch of two hosts whose link is spoiled: all that goes between them passes proxies in front of the first host's entrance.

The coordinator and server 0 are behind them; the second host's worker and server are what connects. No test here needs a right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from launch import free_neighbours
from paceline.trace.record import read_summary
from paceline.transport.dial import Endpoint
from paceline.transport.keys import write_key_file
from proxy import FAIR, Proxy, Weather
from ranks import Ranks

pytestmark = pytest.mark.timeout(300)

Launched = Callable[..., Ranks]
SILENCE_S = 6.0
ENDS_WITHIN_S = SILENCE_S + 30.0
"""The deadline that is stated for what falls silent, and the time that a loaded machine may take to tell it."""
ONCE = {"once": 800, "repeated": 0, "skipped": 0, "undone": 0}
BAD = Weather(latency_s=0.001, jitter_s=0.003, slice_bytes=61)
FAULTS = {
    "flips": Weather(harm="flip", first=500, every_bytes=500),
    "doubles": Weather(harm="double", first=500),
    "end": Weather(harm="cut", first=500),
    "reset": Weather(harm="reset", first=500),
    "hole": Weather(hole=True),
}
WIRES = ("plain", "mac", "tls")


class Link:
    """Proxies at a second loopback address, before the coordinator's and the server's door; `own` is what the ranks are told of it."""

    def __init__(self, stack: ExitStack) -> None:
        port = free_neighbours()
        doors = [(Endpoint("127.0.0.1", port + number), Endpoint("127.0.0.2", port + number)) for number in range(2)]
        self.coordinator, self.server = (
            stack.enter_context(Proxy(behind, at=at, seed=number)) for number, (behind, at) in enumerate(doors)
        )
        self.own: list[dict[str, str]] = [{"PACELINE_PORT": str(port), "PACELINE_ADVERTISE": "127.0.0.2"}, {}]

    def become(self, weather: Weather) -> None:
        """Let all connections have this weather, both ways."""
        for proxy in (self.coordinator, self.server):
            proxy.outward = proxy.inward = weather

    @property
    def num_bytes(self) -> list[int]:
        """How much the second host has said at each door."""
        return [sum(map(len, proxy.said)) for proxy in (self.coordinator, self.server)]


@pytest.fixture
def link() -> Iterator[Link]:
    with ExitStack() as stack:
        yield Link(stack)


@pytest.fixture
def started(launched: Launched, link: Link, tmp_path: Path) -> Callable[..., Ranks]:
    """Starts a run of two ranks on the two pretended hosts."""
    key = tmp_path / "job.key"
    write_key_file(key)

    def start(*arguments: str, wire: str, **settings: str) -> Ranks:
        protection = {"wire": wire} if wire == "plain" else {"wire": wire, "key_file": str(key)}
        told = {"same_host": "hosts", "silence": f"{SILENCE_S:g}s", **protection, **settings}
        return launched(*arguments, size=2, on_each=1, own=link.own, **told)

    return start


@pytest.mark.parametrize(
    ("wire", "pace"),
    [("mac", "hybrid"), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("plain", "sync"), ("tls", "async"), ("tls", "sync")))],
)
def test_over_a_slow_jittery_sliced_link_every_sample_counts_once(wire: str, pace: str, started: Callable[..., Ranks], link: Link) -> None:
    link.become(BAD)
    ranks = started("plain", "0", wire=wire, pace=pace)
    assert ranks.codes() == [0, 0], ranks.printed(0)
    assert read_summary(ranks.out)["ledger"] == ONCE
    assert min(link.num_bytes) > 5_000, link.num_bytes


@pytest.mark.slow
def test_a_bad_link_changes_no_bit_of_what_is_learned(started: Callable[..., Ranks], link: Link) -> None:
    models: list[bytes] = []
    for weather in (BAD, FAIR):
        link.become(weather)
        ranks = started("states", "0", wire="tls", leases="static", servers="2")
        assert ranks.codes() == [0, 0], ranks.printed(0)
        models.append((ranks.out / "final.safetensors").read_bytes())
    assert models[0] == models[1]


def lasts(ranks: Ranks) -> None:
    """The first host does all samples alone, and says whom it has lost."""
    assert ranks.codes(of=[0]) == [0], ranks.printed(0)
    summary = read_summary(ranks.out)
    assert (summary["ledger"], summary["lost"]) == (ONCE, [1])
    assert "worker 1 was lost (" in ranks.printed(0)


def ends_with_a_sentence(ranks: Ranks, rank: int, *names: str) -> None:
    """A rank ends in time and names whom it has lost."""
    assert ranks.codes(ENDS_WITHIN_S, of=[rank]) == [4], ranks.printed(rank)
    told = ranks.printed(rank)
    assert "Traceback" not in told
    assert any(name in told for name in names), told


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "wire"), [("flips", "mac"), ("reset", "plain"), ("end", "tls")])
def test_a_worker_whose_word_to_the_coordinator_is_spoiled_has_left(
    fault: str, wire: str, started: Callable[..., Ranks], link: Link
) -> None:
    ranks = started("plain", "0.02", wire=wire, pace="async")
    ranks.wait_for_updates(5)
    link.coordinator.outward = FAULTS[fault]
    ends_with_a_sentence(ranks, 1, "coordinator")
    lasts(ranks)
    assert ranks.left() == []


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "wire"), [*product(["flips"], WIRES), ("doubles", "mac"), ("end", "tls")])
def test_a_gradient_that_is_spoiled_is_in_no_update_and_the_end_names_the_connection(
    fault: str, wire: str, started: Callable[..., Ranks], link: Link
) -> None:
    ranks = started("plain", "0.02", wire=wire, pace="async")
    ranks.wait_for_updates(5)
    link.server.outward = FAULTS[fault]
    for rank in range(2):
        ends_with_a_sentence(ranks, rank, "server 0")
    reason = json.loads((ranks.out / "reason.json").read_text())["reason"]
    assert "worker 1" in reason
    assert "server 0" in reason
    summary = read_summary(ranks.out)
    assert summary["ledger"]["repeated"] == 0
    assert summary["ledger"]["once"] == 10 * summary["updates"]
    assert ranks.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["outward", "inward", "reset"])
def test_a_host_that_is_cut_off_ends_and_the_other_does_its_samples(ways: str, started: Callable[..., Ranks], link: Link) -> None:
    ranks = started("plain", "0.02", wire="mac", pace="async")
    ranks.wait_for_updates(5)
    for proxy in (link.coordinator, link.server):
        if ways == "reset":
            proxy.reset()
        else:
            setattr(proxy, ways, FAULTS["hole"])
    ends_with_a_sentence(ranks, 1, "coordinator", "server 0")
    lasts(ranks)
    assert ranks.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["flips", "hole"])
def test_a_host_with_a_part_of_the_model_that_is_cut_off_ends_the_run(fault: str, started: Callable[..., Ranks], link: Link) -> None:
    ranks = started("plain", "0.02", wire="mac", servers="2")
    ranks.wait_for_updates(5)
    link.coordinator.outward = FAULTS[fault]
    ends_with_a_sentence(ranks, 0, "server 1 was lost", "worker 1 was lost")
    ends_with_a_sentence(ranks, 1, "coordinator", "server")
    assert ranks.left() == []
