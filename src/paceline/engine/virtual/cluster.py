"""A cluster as values: who computes how fast, what lies between the machines, who fails, comes and goes.

What a cluster file says, checked; how it is read is `cluster_file`'s. Times are seconds, rates bytes per second.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite
from typing import Literal

import msgspec

from paceline.errors import ConfigError

Factor = Literal["constant", "normal", "lognormal", "exponential", "recorded"]
Cancel = Literal["at step end", "at once"]
Hosts = Literal["apart", "one", "with workers"]

MOST_SPREAD = 10.0
GBIT = 125e6


class Seconds(float):
    """A length of time; a file may write it as `80 ms`."""


class Rate(float):
    """Bytes per second; a file may write it as `10 Gbit/s`."""


class Slowdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start_s": "from", "stop_s": "to"}):
    """A step that begins in this span of the run takes `factor` times as long."""

    factor: float
    start_s: Seconds = Seconds(0.0)
    stop_s: Seconds = Seconds(inf)


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Workers that are alike; without `count` they are what the other groups leave.

    A step takes `compute` times its samples times a factor of mean 1, drawn once per step; `spread` is the factor's
    deviation (of its logarithm, for lognormal). `recorded` is a file of step times, of which only the shape counts;
    `profile` a file of step times that are taken as they are, times `times`. `mtbf` is the mean time between failures
    of one worker, which is back `repair` later.
    """

    count: int | None = None
    compute: Seconds = Seconds(1e-3)
    factor: Factor = "constant"
    spread: float = 0.0
    recorded: str | None = None
    profile: str | None = None
    times: float = 1.0
    cancel: Cancel = "at step end"
    slow: tuple[Slowdown, ...] = ()
    region: str = ""
    per_host: int = 1
    bandwidth: Rate | None = None
    mtbf: Seconds | None = None
    repair: Seconds = Seconds(60.0)
    joins: Seconds = Seconds(0.0)
    leaves: Seconds | None = None


class Servers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where servers and the coordinator run: each on a host `apart`, all on `one`, or `with workers`, one with each of the first.

    The coordinator is with server 0. `count` is how many there are when nobody says so. `apply` is how many bytes a server
    works through: those of its shard once for each gradient of an update and once for the optimizer's step.
    """

    count: int | None = None
    hosts: Hosts = "apart"
    region: str = ""
    bandwidth: Rate | None = None
    apply: Rate = Rate(inf)


class Between(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What lies between two regions: a latency, and a bandwidth that all its transfers of one direction share."""

    regions: tuple[str, str]
    latency: Seconds
    bandwidth: Rate = Rate(inf)


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The link of each host (`bandwidth` in each direction), the way between two hosts of a region, and inside a host."""

    bandwidth: Rate = Rate(10 * GBIT)
    latency: Seconds = Seconds(1e-4)
    inside_bandwidth: Rate = Rate(inf)
    inside_latency: Seconds = Seconds(0.0)
    between: tuple[Between, ...] = ()


class Kill(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A worker dies at a time; with `repair` it comes back so much later."""

    worker: int
    at: Seconds
    repair: Seconds | None = None


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole; `size` is the number of workers when nobody says so."""

    about: str = ""
    size: int | None = None
    network: Network = Network()
    servers: Servers = Servers()
    workers: tuple[Group, ...] = (Group(),)
    kill: tuple[Kill, ...] = ()

    @property
    def default_workers(self) -> int | None:
        """How many workers there are when nobody says so; None when the cluster does not say it either."""
        if self.size is not None:
            return self.size
        counts = [group.count for group in self.workers]
        return sum(count for count in counts if count is not None) if None not in counts else None


EVEN = Cluster()
"""Without a cluster file: even workers, 1 ms per sample, 10 Gbit/s, 0.1 ms."""


def crew_of(cluster: Cluster, num_workers: int) -> list[Group]:
    """The group of each worker. Raises ConfigError when the groups cannot have `num_workers` in all.

    >>> [group.times for group in crew_of(Cluster(workers=(Group(times=2.0), Group(count=1, times=3.0))), 3)]
    [2.0, 2.0, 3.0]
    """
    fixed = sum(group.count or 0 for group in cluster.workers)
    open_groups = sum(group.count is None for group in cluster.workers)
    rest = num_workers - fixed
    if not open_groups and rest:
        raise ConfigError(f"the cluster's groups have {fixed} workers, so --workers must be {fixed}, got {num_workers}")
    if rest < open_groups:
        raise ConfigError(f"the cluster needs at least {fixed + open_groups} workers, got {num_workers}")
    crew: list[Group] = []
    for group in cluster.workers:
        size = group.count
        if size is None:
            size = -(-rest // open_groups)
            rest, open_groups = rest - size, open_groups - 1
        crew += [group] * size
    for kill in cluster.kill:
        if kill.worker >= num_workers:
            raise ConfigError(f"the cluster kills worker {kill.worker}, with {num_workers} workers it must be 0 to {num_workers - 1}")
    if all(group.joins > 0.0 for group in crew):
        raise ConfigError("every worker of the cluster joins late, at least one must be there at the start")
    return crew


def check_cluster(cluster: Cluster) -> None:
    """Raise ConfigError, a sentence that begins with the place, for a value that is not allowed."""
    for place, value, allowed, ok in _judged(cluster):
        if not ok:
            raise ConfigError(f"{place} is {value}, it must be {allowed}")
    _check_regions(cluster)


def _judged(cluster: Cluster) -> Iterator[tuple[str, object, str, bool]]:
    """Each value with its place, what is allowed and whether it is."""
    yield "size", cluster.size, "at least 1", cluster.size is None or cluster.size >= 1
    yield "workers", "empty", "at least one group", bool(cluster.workers)
    net, servers = cluster.network, cluster.servers
    for name in ("bandwidth", "inside_bandwidth"):
        yield f"network.{name}", getattr(net, name), "above 0", getattr(net, name) > 0.0
    for name in ("latency", "inside_latency"):
        yield f"network.{name}", getattr(net, name), "0 or more", 0.0 <= getattr(net, name) < inf
    for i, between in enumerate(net.between):
        yield f"network.between[{i}].bandwidth", between.bandwidth, "above 0", between.bandwidth > 0.0
        yield f"network.between[{i}].latency", between.latency, "0 or more", 0.0 <= between.latency < inf
    yield "servers.count", servers.count, "at least 1", servers.count is None or servers.count >= 1
    yield "servers.apply", servers.apply, "above 0", servers.apply > 0.0
    yield "servers.bandwidth", servers.bandwidth, "above 0", servers.bandwidth is None or servers.bandwidth > 0.0
    for i, kill in enumerate(cluster.kill):
        yield f"kill[{i}].worker", kill.worker, "0 or more", kill.worker >= 0
        yield f"kill[{i}].at", kill.at, "0 or more", 0.0 <= kill.at < inf
        yield f"kill[{i}].repair", kill.repair, "0 or more", kill.repair is None or 0.0 <= kill.repair < inf
    for i, group in enumerate(cluster.workers):
        for name, value, allowed, ok in _judged_group(group):
            yield f"workers[{i}].{name}", value, allowed, ok


def _judged_group(group: Group) -> Iterator[tuple[str, object, str, bool]]:
    yield "count", group.count, "at least 1", group.count is None or group.count >= 1
    yield "compute", group.compute, "0 or more", 0.0 <= group.compute < inf
    yield "times", group.times, "above 0", 0.0 < group.times < inf
    yield "spread", group.spread, f"0 to {MOST_SPREAD:g}", 0.0 <= group.spread <= MOST_SPREAD
    yield "per_host", group.per_host, "at least 1", group.per_host >= 1
    yield "bandwidth", group.bandwidth, "above 0", group.bandwidth is None or group.bandwidth > 0.0
    yield "mtbf", group.mtbf, "above 0", group.mtbf is None or group.mtbf > 0.0
    yield "repair", group.repair, "0 or more", 0.0 <= group.repair < inf
    yield "joins", group.joins, "0 or more", 0.0 <= group.joins < inf
    yield "leaves", group.leaves, "later than it joins", group.leaves is None or group.leaves > group.joins
    needs_file = group.factor == "recorded"
    yield "recorded", group.recorded, "a file when factor is recorded, else absent", needs_file is (group.recorded is not None)
    for i, slow in enumerate(group.slow):
        yield f"slow[{i}].factor", slow.factor, "above 0", isfinite(slow.factor) and slow.factor > 0.0
        yield f"slow[{i}].to", slow.stop_s, "later than from", slow.stop_s > slow.start_s >= 0.0


def _check_regions(cluster: Cluster) -> None:
    """Everyone talks to the servers and the coordinator, so there must be a way to them."""
    joined = {frozenset(between.regions) for between in cluster.network.between}
    regions = {group.region for group in cluster.workers} | {cluster.servers.region}
    for between in cluster.network.between:
        for region in between.regions:
            if region not in regions:
                raise ConfigError(f"network.between names the region {region!r}, allowed: {', '.join(map(repr, sorted(regions)))}")
    home = cluster.servers.region
    for region in sorted(regions - {home}):
        if cluster.servers.hosts != "with workers" and frozenset((home, region)) not in joined:
            raise ConfigError(f"workers in {region!r} cannot reach the servers in {home!r}: network.between has no entry for the two")
    if cluster.servers.hosts == "with workers":
        for one in sorted(regions - {home}):
            for other in sorted(regions - {home, one}):
                if frozenset((one, other)) not in joined:
                    raise ConfigError(f"workers in {one!r} cannot reach servers in {other!r}: network.between has no entry for the two")
