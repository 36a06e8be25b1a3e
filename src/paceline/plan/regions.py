"""A cluster file from a checkup of hosts: the link of each, what lies between groups of them, and how fast each computes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, pairwise
from math import log
from statistics import median
from typing import Any, NamedTuple

from paceline.errors import ConfigError
from paceline.plan.calibrate import ALIKE, DEVIATION_OF_QUARTILES, rate_text, seconds_text, timed_as
from paceline.plan.doctor.findings import Host, Report

FAR = 3.0
"""Hosts with latencies so many times as long, or with so little of the bandwidth that their links have, are in different regions."""
FAR_S = 5e-4
"""Below that a latency is the same place, whatever the others are."""
ALIKE_LINKS = 0.25


class Tie(NamedTuple):
    """Between two hosts: the latency of one way, and what a job's connections bring in the better direction."""

    latency_s: float
    bytes_per_s: float


class Place(NamedTuple):
    """A host in its region, with its own link."""

    host: Host
    region: str
    link_bytes_per_s: float


def hosts_cluster(report: Report) -> dict[str, Any]:
    """The cluster of a report. Raises ConfigError when it has fewer than two hosts, or two of them were not measured."""
    ties = _ties(report)
    links = {host.rank: max(tie.bytes_per_s for pair, tie in ties.items() if host.rank in pair) for host in report.hosts}
    groups = regions_of([host.rank for host in report.hosts], ties, links)
    names = {rank: name for name, ranks in zip(_names(), groups, strict=False) for rank in ranks}
    if len(groups) == 1:
        names = dict.fromkeys(names, "")
    near = [tie for pair, tie in ties.items() if names[pair[0]] == names[pair[1]]] or list(ties.values())
    usual = median(links.values())
    machines = [host.machine for host in report.hosts if host.machine is not None]
    network = {
        "bandwidth": rate_text(usual),
        "latency": seconds_text(median(tie.latency_s for tie in near)),
        "inside_bandwidth": rate_text(median(machine.memory_bytes_per_s for machine in machines)),
        "inside_latency": seconds_text(median(machine.unix_answer_s / 2 for machine in machines)),
    }
    between = _between(groups, names, ties)
    places = [Place(host, names[host.rank], links[host.rank]) for host in report.hosts]
    servers = {"count": len(places), "hosts": "with workers"} | ({"region": places[0].region} if places[0].region else {})
    num_workers = sum(host.num_processes for host in report.hosts)
    guess = "" if all(host.sample for host in report.hosts) else ", and steps of 1 ms a sample, which are a guess"
    return {
        "about": f"Measured: {len(places)} hosts with {num_workers} workers{guess}.",
        "size": num_workers,
        "network": network | ({"between": between} if between else {}),
        "servers": servers,
        "workers": _crew(places, usual),
    }


def _ties(report: Report) -> dict[tuple[int, int], Tie]:
    ways = {(visit.visitor, visit.host): (visit, visit.way) for visit in report.visits}
    ties: dict[tuple[int, int], Tie] = {}
    for one, other in combinations([host.rank for host in report.hosts], 2):
        there = [ways[pair] for pair in ((one, other), (other, one)) if pair in ways]
        found = [
            Tie(way.round_trip_s / 2, max(visit.wire_bytes_per_s, visit.wire_two_bytes_per_s))
            for visit, way in there
            if way is not None and visit.wire_bytes_per_s
        ]
        if not found:
            raise ConfigError(f"nothing was measured between rank {one} and rank {other}: `paceline doctor` tells why")
        ties[one, other] = Tie(min(tie.latency_s for tie in found), max(tie.bytes_per_s for tie in found))
    if not ties:
        raise ConfigError("there is one host only, so nothing lies between hosts: paceline calibrate measures it without a launcher")
    return ties


def regions_of(ranks: list[int], ties: dict[tuple[int, int], Tie], links: dict[int, float]) -> list[list[int]]:
    """The hosts in groups that are near each other, by first ranks; a group holds whoever is near to one of it.

    >>> near, far = Tie(1e-4, 1e9), Tie(2e-2, 1e9)
    >>> regions_of([0, 1, 2], {(0, 1): near, (0, 2): far, (1, 2): far}, dict.fromkeys(range(3), 1e9))
    [[0, 1], [2]]
    """
    limit_s = _limit_s(tie.latency_s for tie in ties.values())
    region = {rank: rank for rank in ranks}
    for (one, other), tie in ties.items():
        if tie.latency_s <= limit_s and FAR * tie.bytes_per_s >= min(links[one], links[other]):
            mine, theirs = region[one], region[other]
            region = {rank: min(mine, theirs) if at in (mine, theirs) else at for rank, at in region.items()}
    return [[rank for rank in ranks if region[rank] == first] for first in sorted(set(region.values()))]


def _limit_s(latencies_s: Iterable[float]) -> float:
    """In the middle of the widest gap between short and long latencies; beyond all of them where there is none."""
    ordered = sorted(latencies_s)
    gaps = [(after / max(1e-9, before), before, after) for before, after in pairwise(ordered) if after >= FAR_S]
    ratio, before, after = max(gaps, default=(1.0, 0.0, 0.0))
    return (before * after) ** 0.5 if ratio >= FAR else ordered[-1]


def _names() -> Iterable[str]:
    return (f"region-{number}" for number in range(1, 1 << 20))


def _between(groups: list[list[int]], names: dict[int, str], ties: dict[tuple[int, int], Tie]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one, other in combinations(groups, 2):
        across = [ties[min(a, b), max(a, b)] for a in one for b in other]
        found.append(
            {
                "regions": [names[one[0]], names[other[0]]],
                "latency": seconds_text(median(tie.latency_s for tie in across)),
                "bandwidth": rate_text(max(tie.bytes_per_s for tie in across)),
            }
        )
    return found


def _crew(places: list[Place], usual: float) -> list[dict[str, Any]]:
    """Hosts in their order, those next to each other that are alike as one group of workers."""
    groups: list[tuple[Place, list[Place]]] = []
    for place in places:
        if groups and _are_alike(groups[-1][0], place):
            groups[-1][1].append(place)
        else:
            groups.append((place, [place]))
    return [_group(first, alike, usual) for first, alike in groups]


def _are_alike(one: Place, other: Place) -> bool:
    return (
        (one.region, one.host.num_processes) == (other.region, other.host.num_processes)
        and abs(other.link_bytes_per_s / one.link_bytes_per_s - 1.0) < ALIKE_LINKS
        and abs(_sample_s(other) / _sample_s(one) - 1.0) < ALIKE
    )


def _sample_s(place: Place) -> float:
    """The seconds a sample, the same for all hosts where no script was timed."""
    return place.host.sample.median_s if place.host.sample is not None else 1.0


def _group(first: Place, alike: list[Place], usual: float) -> dict[str, Any]:
    per_host = first.host.num_processes
    group: dict[str, Any] = {"count": per_host * len(alike), "per_host": per_host}
    if first.region:
        group["region"] = first.region
    link = median(place.link_bytes_per_s for place in alike)
    if abs(link / usual - 1.0) >= ALIKE_LINKS:
        group["bandwidth"] = rate_text(link)
    times = [place.host.sample for place in alike if place.host.sample is not None]
    if times:
        spreads = [log(one.high_s / one.low_s) / DEVIATION_OF_QUARTILES for one in times]
        group |= timed_as(median(one.median_s for one in times), median(spreads))
    return group
