"""What lies between the processes: hosts with a link in each direction, regions, and what a message takes from one to another.

A transfer is served by the slowest link on its way, which all its transfers share evenly; no other link slows it
down, but for the worker's own, which its transfers to or from all servers share. Messages without bulk only take the latency.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from paceline.engine.virtual.cluster import Between, Cluster, Group
from paceline.engine.virtual.sharing import SharedLink
from paceline.engine.virtual.timeline import Timeline


class Host:
    """A machine: its region, and its link out and in (None: as fast as one likes)."""

    def __init__(self, timeline: Timeline, region: str, bytes_per_s: float) -> None:
        self.region = region
        self.bytes_per_s = bytes_per_s
        self.out, self.into = (None, None) if bytes_per_s == inf else (SharedLink(timeline, bytes_per_s), SharedLink(timeline, bytes_per_s))


class Way(NamedTuple):
    """From one process to another: `link` serves the transfers; `own_s` is what a byte takes on the worker's own link."""

    latency_s: float
    link: SharedLink | None
    own_s: float


class Ways(NamedTuple):
    """All that a worker uses: latencies to and from the coordinator, ways to and from each server."""

    coordinator_s: float
    to_servers: tuple[Way, ...]
    from_servers: tuple[Way, ...]


class Network:
    """The hosts of a cluster with its `crew` of workers and so many servers; the coordinator is with server 0."""

    def __init__(self, timeline: Timeline, cluster: Cluster, crew: list[Group], num_servers: int) -> None:
        self._timeline = timeline
        self._net = cluster.network
        self._pipes: dict[tuple[str, str], tuple[Between, SharedLink | None]] = {}
        for between in self._net.between:
            for one, other in (between.regions, between.regions[::-1]):
                pipe = None if between.bandwidth == inf else SharedLink(timeline, between.bandwidth)
                self._pipes[one, other] = between, pipe
        self._workers = self._hosts_of(crew)
        self._servers = self._hosts_of_servers(cluster, num_servers)
        self._ways: dict[int, Ways] = {}
        self.apply_bytes_per_s = cluster.servers.apply
        self.server_latencies_s = [self._latency_s(self._servers[0], host) for host in self._servers]

    def _hosts_of(self, crew: list[Group]) -> list[Host]:
        hosts: list[Host] = []
        num_there = 0
        for number, group in enumerate(crew):
            if number and crew[number - 1] is group and num_there < group.per_host:
                hosts.append(hosts[-1])
            else:
                hosts.append(Host(self._timeline, group.region, group.bandwidth or self._net.bandwidth))
                num_there = 0
            num_there += 1
        return hosts

    def _hosts_of_servers(self, cluster: Cluster, num_servers: int) -> list[Host]:
        servers = cluster.servers
        if servers.hosts == "with workers":
            places = list(dict.fromkeys(self._workers))
            return [places[shard % len(places)] for shard in range(num_servers)]
        num_hosts = 1 if servers.hosts == "one" else num_servers
        hosts = [Host(self._timeline, servers.region, servers.bandwidth or self._net.bandwidth) for _ in range(num_hosts)]
        return [hosts[shard % num_hosts] for shard in range(num_servers)]

    def ways_of(self, worker: int) -> Ways:
        """The ways of a worker."""
        ways = self._ways.get(worker)
        if ways is None:
            mine = self._workers[worker]
            to = tuple(self._way(mine, host, mine) for host in self._servers)
            back = tuple(self._way(host, mine, mine) for host in self._servers)
            ways = self._ways[worker] = Ways(self._latency_s(mine, self._servers[0]), to, back)
        return ways

    def carry(self, way: Way, size_bytes: float, num_beside: int, done: Callable[..., object], *arguments: Any) -> None:
        """Transfer so many bytes, one of `num_beside` transfers that the worker has at a time; then call `done`."""
        own_s = size_bytes * num_beside * way.own_s
        if way.link is None:
            self._timeline.after(own_s + way.latency_s, done, *arguments)
        else:
            way.link.carry(size_bytes, self._served, self._timeline.now_s + own_s, way.latency_s, done, arguments)

    def _served(self, not_before_s: float, latency_s: float, done: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._timeline.at(max(not_before_s, self._timeline.now_s) + latency_s, done, *arguments)

    def _latency_s(self, one: Host, other: Host) -> float:
        if one is other:
            return self._net.inside_latency
        if one.region == other.region:
            return self._net.latency
        return self._pipes[one.region, other.region][0].latency

    def _way(self, source: Host, target: Host, own: Host) -> Way:
        latency_s = self._latency_s(source, target)
        if source is target:
            return Way(latency_s, None, 1.0 / self._net.inside_bandwidth)
        pipe = self._pipes[source.region, target.region][1] if source.region != target.region else None
        ends = (target.into, source.out) if own is source else (source.out, target.into)
        links = [link for link in (pipe, *ends) if link is not None]
        slowest = min(links, key=lambda link: link.bytes_per_s, default=None)  # of equal ones the server's end
        return Way(latency_s, slowest, 1.0 / own.bytes_per_s)
