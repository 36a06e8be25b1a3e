"""Virtual time and what lies between the machines: orders of events, shared links, the slowest link on a way."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any

import pytest

from paceline.engine.virtual.cluster import Between, Cluster, Group, Network, Rate, Seconds, Servers, crew_of
from paceline.engine.virtual.network import Network as Hosts
from paceline.engine.virtual.sharing import SharedLink
from paceline.engine.virtual.timeline import Timeline
from paceline.engine.virtual.trainee import workload
from virtually import timed

LATENCY_S = 0.5


def run_out(timeline: Timeline) -> None:
    while timeline.step():
        pass


def test_what_comes_at_one_time_happens_in_the_order_in_which_it_was_planned() -> None:
    timeline, seen = Timeline(), []
    for name in "abc":
        timeline.at(2.0, seen.append, name)
    timeline.at(1.0, seen.append, "first")
    timeline.call_off(timeline.at(1.5, seen.append, "never"))
    timeline.at(1.0, lambda: timeline.at(0.5, lambda: seen.append(timeline.now_s)))
    run_out(timeline)
    assert seen == ["first", 1.0, "a", "b", "c"]


def test_a_link_is_shared_evenly() -> None:
    """Of 100 B/s: 100 bytes alone for 0.5 s, with 25 bytes until those are through, alone again."""
    timeline, ends = Timeline(), {}
    link = SharedLink(timeline, 100.0)
    link.carry(100, lambda: ends.setdefault("long", timeline.now_s))
    timeline.at(0.5, lambda: link.carry(25, lambda: ends.setdefault("short", timeline.now_s)))
    run_out(timeline)
    assert ends == {"short": pytest.approx(1.0), "long": pytest.approx(1.25)}


def test_many_equal_transfers_take_as_long_as_their_bytes() -> None:
    timeline, ends = Timeline(), []
    link = SharedLink(timeline, 1e9)
    for _ in range(1000):
        link.carry(1e6, lambda: ends.append(timeline.now_s))
    run_out(timeline)
    assert len(ends) == 1000
    assert ends[0] == ends[-1] == pytest.approx(1.0)


def arrival_s(cluster: Cluster, transfers: list[tuple[int, int, bool]], size: float = 100.0, num_servers: int = 2) -> list[float]:
    """When each of the (worker, server, is a push) transfers that begin at 0 has arrived."""
    timeline = Timeline()
    hosts = Hosts(timeline, cluster, crew_of(cluster, 4), num_servers)
    ends = [0.0] * len(transfers)

    def note(index: int) -> None:
        ends[index] = timeline.now_s

    for index, (worker, server, push) in enumerate(transfers):
        ways = hosts.ways_of(worker)
        beside = sum(other[0] == worker and other[2] == push for other in transfers)
        hosts.carry((ways.to_servers if push else ways.from_servers)[server], size, beside, note, index)
    run_out(timeline)
    return ends


def even(rate: float = 100.0, **servers: object) -> Cluster:
    return Cluster(network=Network(bandwidth=Rate(rate), latency=Seconds(LATENCY_S)), servers=Servers(**servers))  # type: ignore[arg-type]


def test_pushes_to_one_server_share_its_link() -> None:
    assert arrival_s(even(), [(worker, 0, True) for worker in range(4)]) == [pytest.approx(4.0 + LATENCY_S)] * 4


def test_pushes_to_two_servers_share_the_workers_own_link() -> None:
    assert arrival_s(even(), [(0, 0, True), (0, 1, True)]) == [pytest.approx(2.0 + LATENCY_S)] * 2


def test_pushes_and_pulls_do_not_share() -> None:
    assert arrival_s(even(), [(0, 0, True), (1, 0, False)]) == [pytest.approx(1.0 + LATENCY_S)] * 2


def test_the_slower_end_decides() -> None:
    slow = Cluster(network=Network(bandwidth=Rate(100.0), latency=Seconds(0.0)), workers=(Group(bandwidth=Rate(10.0)),))
    assert arrival_s(slow, [(worker, 0, True) for worker in range(4)]) == [pytest.approx(10.0)] * 4


def test_a_host_is_faster_inside() -> None:
    inside = even(hosts="with workers")
    assert arrival_s(inside, [(0, 0, True), (1, 0, True)]) == [0.0, pytest.approx(1.0 + LATENCY_S)]


def test_what_lies_between_two_regions_is_shared_by_all_of_one_direction() -> None:
    ocean = Between(regions=("", "west"), latency=Seconds(2.0), bandwidth=Rate(50.0))
    cluster = Cluster(
        network=Network(bandwidth=Rate(inf), latency=Seconds(0.0), between=(ocean,)), workers=(Group(count=2), Group(region="west"))
    )
    transfers = [(0, 0, True), (2, 0, True), (3, 1, True), (2, 0, False)]
    assert arrival_s(cluster, transfers) == [0.0, pytest.approx(6.0), pytest.approx(6.0), pytest.approx(4.0)]


def test_workers_of_one_host_share_its_link() -> None:
    cluster = Cluster(
        network=Network(bandwidth=Rate(100.0), latency=Seconds(0.0)), servers=Servers(bandwidth=Rate(1e6)), workers=(Group(per_host=2),)
    )
    ends = arrival_s(cluster, [(0, 0, True), (1, 0, True), (2, 0, True)])
    assert ends == [pytest.approx(2.0), pytest.approx(2.0), pytest.approx(1.0)]


def test_a_sync_step_takes_its_compute_its_bytes_and_its_messages() -> None:
    """1,000 bytes at 1,000 B/s, latency 0.25: compute, push and its answer, Ready, Start, Pull, the parameters."""
    cluster = "[network]\nbandwidth = 1000\nlatency = 0.25\n[servers]\nhosts = 'one'\n[[workers]]\ncompute = 1.0"
    times_s: list[float] = []
    timed(
        "sync",
        workload(1000, 10),
        cluster,
        num_workers=1,
        watch=lambda event, now_s: times_s.append(now_s) if event["event"] == "update" else None,
    )
    # the memory of a shard is cut at multiples of 64 bytes
    whole_s = 1.0 + 2 * 1.024 + 6 * 0.25
    assert [later - one for one, later in pairwise(times_s)] == [pytest.approx(whole_s)] * 9


def test_a_server_applies_one_update_after_another() -> None:
    """Two workers push at once; each update passes over the shard twice, 1,024 bytes at 1,024 a second, and pulls come behind."""
    cluster = "[network]\nbandwidth = inf\nlatency = 0.0\n[servers]\napply = 1024\n[[workers]]\ncompute = 1.0"
    per_worker: Any = timed("async", workload(1024, 4), cluster, num_workers=2).summary["per_worker"]
    assert [done["wait_s"] for done in per_worker.values()] == [pytest.approx(4.0)] * 2
