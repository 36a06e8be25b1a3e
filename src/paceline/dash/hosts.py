"""What a checkup has found, for people: the hosts, the ways between them, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from paceline.dash.figures import seconds, size
from paceline.plan.doctor.findings import Host, Report, Visit
from paceline.plan.doctor.network import clock_of, rate

MOST_IN_A_MATRIX = 12
"""Hosts; more do not fit on a screen, and stand in the JSON."""


def tell_report(console: Console, report: Report) -> None:
    """The hosts, the ways between them, and what to do."""
    console.print(f"{len(report.hosts)} host{'s' if len(report.hosts) > 1 else ''}, because {report.because}\n")
    console.print(_columns(report))
    if report.visits:
        console.print()
        console.print(_ways(report))
        if len(report.hosts) <= MOST_IN_A_MATRIX:
            for title, cell in (("round trip", _latency), ("one plain connection, two / one with the job's wire, two", _bandwidths)):
                console.print()
                console.print(_matrix(report, title, cell))
    console.print()
    for number, one in enumerate(report.advice, start=1):
        console.print(f"{number}. {one.gravity}: {one.sentence}", soft_wrap=True)
    console.print("nothing was found that keeps a job from running" if report.is_well else "a job will not run well before that is mended")


def _columns(report: Report) -> Table:
    """A row for each thing, a column for each host."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("")
    for host in report.hosts:
        shown.add_column(host.named(report.hosts), overflow="fold")
    for name, of in _ROWS:
        cells = [of(host) for host in report.hosts]
        if any(cells):
            shown.add_row(name, *cells)
    if len(report.hosts) > 1:
        shown.add_row("clock, ahead of the first", *[_clock(report, host) for host in report.hosts])
    return shown


def _clock(report: Report, host: Host) -> str:
    ahead = clock_of(report, host)
    return "" if ahead is None else f"{1e3 * ahead[0]:+,.2f} ms ± {1e3 * ahead[1]:.2f}"


def _key(host: Host) -> str:
    if host.facts.key_error:
        return "cannot be used"
    if not host.facts.key:
        return "none"
    return host.facts.key if host.has_same_key else f"{host.facts.key}, another one"


_ROWS: Sequence[tuple[str, Callable[[Host], str]]] = (
    ("rank, processes", lambda host: f"{host.rank}, {host.num_processes}"),
    ("system", lambda host: host.facts.system),
    ("Python", lambda host: host.facts.python),
    ("torch", lambda host: host.facts.torch),
    ("Paceline", lambda host: f"{host.facts.paceline}, protocol {host.facts.protocol}"),
    ("extras", lambda host: ", ".join(host.facts.extras) or "none"),
    ("cores", lambda host: str(host.facts.cores)),
    ("memory, available", lambda host: f"{size(host.facts.memory_bytes)}, {size(host.facts.available_bytes)}"),
    ("memory files", lambda host: "yes" if host.facts.has_memory_files else "no"),
    ("open files", lambda host: "{} of {}".format(*host.facts.open_files)),
    ("--out", lambda host: host.facts.out),
    ("free there", lambda host: size(host.facts.out_free_bytes)),
    ("key", _key),
    ("advertised address", lambda host: host.facts.advertised),
    ("wire", lambda host: host.facts.wire),
    ("copy in memory", lambda host: f"{host.machine.memory_bytes_per_s / 1e9:.2g} GB/s" if host.machine else ""),
    ("Unix socket", lambda host: _socket(host.machine.unix_bytes_per_s, host.machine.unix_answer_s) if host.machine else ""),
    ("TCP, loopback", lambda host: _socket(host.machine.tcp_bytes_per_s, host.machine.tcp_answer_s) if host.machine else ""),
)


def _socket(bytes_per_s: float, answer_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2g} GB/s, {seconds(answer_s)}"


def _ways(report: Report) -> Table:
    """Every address of every host, by who reaches it."""
    shown = Table(box=None, pad_edge=False)
    for column in ("address", "interface", "of", "reached by", "slowest", "fastest"):
        shown.add_column(column, justify="right" if column in ("slowest", "fastest") else "left", overflow="fold")
    for host in report.hosts:
        visits = [visit for visit in report.visits if visit.host == host.rank]
        for one in host.facts.addresses:
            ways = [way for visit in visits for way in visit.ways if way.address == one.address]
            rates = [way.bytes_per_s for way in ways if not way.error]
            reached = f"{len(rates)} of {len(ways)}"
            mark = " *" if one.address == host.facts.advertised else ""
            shown.add_row(
                one.address + mark, one.name, host.named(report.hosts), reached, *(rate(of(rates)) if rates else "" for of in (min, max))
            )
    return shown


def _matrix(report: Report, title: str, cell: Callable[[Visit], str]) -> Table:
    """From the host of a row to that of a column."""
    shown = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="")
    shown.add_column("from \\ to")
    for host in report.hosts:
        shown.add_column(host.named(report.hosts), justify="right", overflow="fold")
    found = {(visit.visitor, visit.host): visit for visit in report.visits}
    for row in report.hosts:
        visits = [found.get((row.rank, column.rank)) for column in report.hosts]
        shown.add_row(row.named(report.hosts), *(cell(visit) if visit is not None else "" for visit in visits))
    return shown


def _latency(visit: Visit) -> str:
    return seconds(visit.way.round_trip_s) if visit.way is not None else "not reached"


def _bandwidths(visit: Visit) -> str:
    if visit.way is None:
        return "not reached"
    plain, wire = (visit.way.bytes_per_s, visit.two_bytes_per_s), (visit.wire_bytes_per_s, visit.wire_two_bytes_per_s)
    return " / ".join(", ".join(rate(one) for one in pair) for pair in (plain, wire))
