"""What a report comes to, in sentences: what fails, what could be faster, what is good to know. Each names its hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from paceline.plan.doctor.findings import Advice, Gravity, Host, Report
from paceline.plan.doctor.network import network_advice

LITTLE_DISK_BYTES = 1 << 30
FILES_AT_LEAST, FILES_EACH = 128, 8
"""Descriptors of a process: its own, and for each other one its connections."""
LITTLE_MEMORY = 0.1


def advice_for(report: Report) -> list[Advice]:
    """All of it, the gravest first; in order of what has to be mended before what."""
    rules = (_missing, _keys, _versions, _folders, _limits, network_advice)
    every = list(chain.from_iterable(rule(report) for rule in rules))
    grave: tuple[Gravity, ...] = ("fails", "slow", "note")
    return sorted(every, key=lambda one: grave.index(one.gravity))


def _missing(report: Report) -> Iterator[Advice]:
    for rank in report.missing:
        yield Advice("fails", f"rank {rank} did not come: is it started, and does its host reach MASTER_ADDR and MASTER_PORT?")
    for host in report.hosts:
        if host.lost:
            yield Advice("fails", f"{host.named(report.hosts)} was lost during the checkup: {host.lost}")


def _keys(report: Report) -> Iterator[Advice]:
    for host in report.hosts:
        if host.facts.key_error:
            yield Advice("fails", f"{host.named(report.hosts)}: {host.facts.key_error}")
    told = [host for host in report.hosts if not host.facts.key_error]
    without = [host for host in told if not host.facts.key]
    if len(without) == len(report.hosts) > 1 and any(host.facts.place_error for host in report.hosts):
        yield Advice(
            "fails",
            "no host has a key, so nothing between them was measured: make one with `paceline keys new job.key`, copy it to every host "
            "(mode 0600), name it in PACELINE_KEY_FILE there, and ask again",
        )
        return
    for host in told:
        name = host.named(report.hosts)
        if not host.facts.key and len(without) < len(report.hosts):
            yield Advice("fails", f"{name} has no key: copy the job's key there (mode 0600) and name it in PACELINE_KEY_FILE")
        elif report.hosts[0].facts.key and not host.has_same_key:
            yield Advice("fails", f"{name} has another key than {report.hosts[0].named(report.hosts)}: copy one key file to every host")
        elif host.facts.place_error:
            yield Advice("fails", f"{name}: {host.facts.place_error}")


def _versions(report: Report) -> Iterator[Advice]:
    kinds: tuple[tuple[Gravity, str, Callable[[Host], object]], ...] = (
        ("fails", "Paceline", lambda host: host.facts.paceline),
        ("fails", "protocol version", lambda host: host.facts.protocol),
        ("fails", "torch", lambda host: host.facts.torch.partition("+")[0]),
        ("note", "the build of torch", lambda host: host.facts.torch.partition("+")[2]),
        ("note", "Python", lambda host: host.facts.python),
        ("fails", "PACELINE_WIRE", lambda host: host.facts.wire if not host.facts.place_error else None),
        ("note", "the limit of open files", lambda host: host.facts.open_files[0]),
    )
    for gravity, what, of in kinds:
        found: dict[object, list[str]] = {}
        for host in report.hosts:
            if value := of(host):
                found.setdefault(value, []).append(host.named(report.hosts))
        if len(found) > 1:
            told = "; ".join(f"{value} on {', '.join(names)}" for value, names in found.items())
            yield Advice(gravity, f"hosts differ in {what}: {told}")


def _folders(report: Report) -> Iterator[Advice]:
    for host in report.hosts:
        name, facts = host.named(report.hosts), host.facts
        if facts.out_error:
            yield Advice("fails", f"{name}: --out cannot be used: {facts.out_error}")
        elif facts.out_free_bytes < LITTLE_DISK_BYTES:
            yield Advice("note", f"{name} has {facts.out_free_bytes / 2**20:.0f} MiB left on the disk of {facts.out}")


def _limits(report: Report) -> Iterator[Advice]:
    needed = FILES_AT_LEAST + FILES_EACH * sum(host.num_processes for host in report.hosts)
    for host in report.hosts:
        name, facts = host.named(report.hosts), host.facts
        soft, hard = facts.open_files
        if 0 < soft < needed:
            mend = f"ulimit -n {needed}" if hard < 0 or hard >= needed else f"its hard limit of {hard} has to be raised first"
            yield Advice("fails", f"{name} allows {soft} open files a process, this job may need {needed}: {mend}")
        if not facts.has_memory_files:
            yield Advice("fails", f"{name} has no memory files (memfd), which processes of one host share: `paceline run` needs Linux")
        if facts.memory_bytes and facts.available_bytes < LITTLE_MEMORY * facts.memory_bytes:
            available, every = (f"{value / 2**30:.1f}" for value in (facts.available_bytes, facts.memory_bytes))
            yield Advice("note", f"{name} has {available} of {every} GiB of memory left")
