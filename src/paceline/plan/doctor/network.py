"""What the visits come to, in sentences: who does not reach whom, and which address of a host is the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from paceline.plan.doctor.findings import Advice, Host, Report, Visit, Way

FASTER = 1.25
"""An address that brings so much more is worth a word."""
GAIN_OF_TWO = 1.5
WIRE_COST = 0.5
LAGS = 3.0
CLOCK_S = 0.5
HALF_A_DAY_S = 43_200.0


def rate(bytes_per_s: float) -> str:
    """A bandwidth as networks are called.

    >>> rate(12.5e6), rate(1.25e9), rate(25e3)
    ('100 Mbit/s', '10 Gbit/s', '0.2 Mbit/s')
    """
    bits = 8.0 * bytes_per_s
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def network_advice(report: Report) -> Iterator[Advice]:
    """All that is to be said of the ways between the hosts."""
    for host in report.hosts:
        visits = [visit for visit in report.visits if visit.host == host.rank]
        yield from _unreached(report, host, visits)
    yield from _faster(report)
    yield from _clocks(report)
    yield from _laggards(report)
    yield from _wires(report)


def _unreached(report: Report, host: Host, visits: list[Visit]) -> Iterator[Advice]:
    name = host.named(report.hosts)
    if host.facts.outside and any(way.error for visit in visits for way in visit.ways if way.address == host.facts.advertised):
        where = f"not all reach {name} at {host.facts.advertised}, but a job would look for it at {host.facts.outside}"
        yield Advice("note", f"{where} (PACELINE_ADVERTISE), which a checkup does not visit")
        return
    for visit in visits:
        visitor = _host(report, visit.visitor).named(report.hosts)
        advertised = next((way for way in visit.ways if way.address == host.facts.advertised), None)
        others = [way for way in visit.ways if not way.error]
        if advertised is not None and advertised.error:
            where = f"{visitor} does not reach {name} at {advertised.address}, where a job would look for it ({advertised.error})"
            if others:
                best = max(others, key=lambda way: way.bytes_per_s)
                yield Advice("fails", f"{where}: set PACELINE_HOST={best.address} on {name}, which is reached")
            else:
                ports = f" {host.facts.ports}" if host.facts.ports else ""
                yield Advice("fails", f"{where}, nor at any other address: let TCP through to its ports{ports}")
        elif visit.error:
            yield Advice("fails", f"{visitor} visits {name}: {visit.error}")


def common_ways(report: Report, host: Host) -> dict[str, Way]:
    """The ways to a host by address, of those addresses at which all visitors reach it, with the median bandwidth of the visitors."""
    visits = [visit for visit in report.visits if visit.host == host.rank and visit.ways]
    ways: dict[str, list[Way]] = {}
    for way in (way for visit in visits for way in visit.ways if not way.error):
        ways.setdefault(way.address, []).append(way)
    return {
        address: replace(found[0], bytes_per_s=median(way.bytes_per_s for way in found))
        for address, found in ways.items()
        if len(found) == len(visits)
    }


class Faster(NamedTuple):
    """A host that others reach faster at another address than at the one that a job would use, and what to set there."""

    host: Host
    wish: str
    best: Way
    advertised: Way


def _faster(report: Report) -> Iterator[Advice]:
    found = [one for host in report.hosts if (one := _faster_way(report, host)) is not None]
    told = [f"{one.host.named(report.hosts)} is {_times(one)} as fast at {_at(one.best)} as at {_at(one.advertised)}" for one in found]
    wishes = {one.wish for one in found}
    if len(found) == len(report.hosts) > 1 and wishes == {one.best.interface for one in found} and len(wishes) == 1:
        wish = wishes.pop()
        yield Advice("slow", f"{wish} is the faster interface of every host: {'; '.join(told)}. Set PACELINE_HOST={wish} on all of them")
        return
    for one, sentence in zip(found, told, strict=True):
        yield Advice("slow", f"{sentence}, where a job would look for it: set PACELINE_HOST={one.wish} there")


def _faster_way(report: Report, host: Host) -> Faster | None:
    common = common_ways(report, host)
    if host.facts.outside or host.facts.advertised not in common:
        return None
    best, advertised = max(common.values(), key=lambda way: way.bytes_per_s), common[host.facts.advertised]
    if best.bytes_per_s < FASTER * advertised.bytes_per_s:
        return None
    # an interface's name is short and may be the same on every host, if it has one address only
    is_only = [way.interface for way in common.values()].count(best.interface) == 1
    return Faster(host, best.interface if best.interface and is_only else best.address, best, advertised)


def _times(one: Faster) -> str:
    times = one.best.bytes_per_s / one.advertised.bytes_per_s
    return f"{times:.0f} times" if times > 9.5 else f"{times:.1f} times"


def _at(way: Way) -> str:
    return f"{way.address} ({way.interface}, {rate(way.bytes_per_s)})"


def _clocks(report: Report) -> Iterator[Advice]:
    first = report.hosts[0]
    for host in report.hosts[1:]:
        ahead = clock_of(report, host)
        if ahead is None or abs(ahead[0]) < CLOCK_S + ahead[1]:
            continue
        by, side = f"{abs(ahead[0]):,.1f} s (± {1e3 * ahead[1]:.2g} ms)", "ahead of" if ahead[0] > 0 else "behind"
        told = f"the clock of {host.named(report.hosts)} is {by} {side} that of {first.named(report.hosts)}"
        if abs(ahead[0]) > HALF_A_DAY_S and host.facts.wire == "tls":
            yield Advice("fails", f"{told}: certificates may count as not valid there; set the clock")
        else:
            yield Advice("note", f"{told}: times in logs do not compare, training does not mind")


def clock_of(report: Report, host: Host) -> tuple[float, float] | None:
    """How far a host's clock is ahead of rank 0's, and the error of that, in seconds."""
    for visit in report.visits:
        way = visit.way
        if way is not None and visit.visitor == report.hosts[0].rank and visit.host == host.rank:
            return way.ahead_s, way.ahead_error_s
    return None


def _laggards(report: Report) -> Iterator[Advice]:
    """Pairs that are much slower than most; of two hosts there is no most."""
    measured = [(visit, way.bytes_per_s) for visit in report.visits if (way := visit.way) is not None]
    if len(report.hosts) < 3 or not measured:
        return
    usual = median(bytes_per_s for _, bytes_per_s in measured)
    for visit, bytes_per_s in measured:
        if bytes_per_s * LAGS < usual:
            names = [_host(report, rank).named(report.hosts) for rank in (visit.visitor, visit.host)]
            yield Advice("slow", f"{names[0]} to {names[1]} has {rate(bytes_per_s)}, most others have {rate(usual)}")


def _wires(report: Report) -> Iterator[Advice]:
    """What a second connection and the wire come to, over all visits."""
    measured = [visit for visit in report.visits if visit.wire_bytes_per_s]
    if not measured:
        return
    gain = median(visit.wire_two_bytes_per_s / visit.wire_bytes_per_s for visit in measured)
    cost = median(max(visit.wire_bytes_per_s, visit.wire_two_bytes_per_s) / max(1.0, visit.two_bytes_per_s) for visit in measured)
    if gain > GAIN_OF_TWO:
        yield Advice("note", f"two connections bring {gain:.1f} times what one does")
    wire = report.hosts[0].facts.wire
    if cost < WIRE_COST and wire == "tls":
        yield Advice("note", f"TLS brings {100 * cost:.0f} % of what the network does: PACELINE_WIRE=mac is faster, on a network you trust")


def _host(report: Report, rank: int) -> Host:
    return next(host for host in report.hosts if host.rank == rank)
