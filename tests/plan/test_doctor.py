"""`paceline doctor`: pretended hosts, each a thread with facts of its own, look at each other over real ports."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from rich.console import Console

from launch import free_neighbours, free_port
from paceline.cli import main
from paceline.dash.hosts import tell_report
from paceline.engine.torchrun.board import Board
from paceline.engine.torchrun.interfaces import Interface
from paceline.engine.torchrun.launch import Launch
from paceline.errors import PacelineError
from paceline.messages import Address
from paceline.plan.doctor.advice import advice_for
from paceline.plan.doctor.checkup import Checkup, num_rounds, pairs_of
from paceline.plan.doctor.doors import Doors
from paceline.plan.doctor.facts import Facts, facts_here
from paceline.plan.doctor.findings import Host, Report, Visit, Way
from paceline.plan.machine import Machine
from paceline.transport.keys import read_key_file, write_key_file
from paceline.transport.trust import Trust

MACHINE = Machine(2, 8e9, 4e9, 3e9, 50e-6, 60e-6)
PLAIN = Trust()
HERE = "127.0.0.1"


def facts(name: str = "one", **other: Any) -> Facts:
    """Those of a host where everything is well."""
    well: dict[str, Any] = {
        "python": "3.11.7",
        "torch": "2.9.0+cpu",
        "paceline": "0.1.0",
        "protocol": 1,
        "has_memory_files": True,
        "open_files": (4096, 4096),
        "out_free_bytes": 1 << 40,
        "wire": "plain",
        "advertised": HERE,
        "addresses": (Interface("lo", HERE),),
    }
    return Facts(name=name, **{**well, **other})


class Person(NamedTuple):
    """A process of a checkup."""

    facts: Facts
    trust: Trust = PLAIN
    local_rank: int = 0
    ahead_s: float = 0.0
    comes: bool = True
    note: bytes = b""


def examined(*people: Person, patience_s: float = 10.0) -> tuple[Report, dict[int, str]]:
    """Rank 0's report, and what the others raised, by rank."""
    port, raised, reports = free_port(), dict[int, str](), list[Report | None]()

    def take_part(rank: int, person: Person) -> None:
        launch = Launch("a test", "a test says so", rank, len(people), person.local_rank, (HERE, port))
        try:
            if person.note:
                board = Board(launch, person.trust)
                for name in ("card", "bye"):
                    board.write(f"{name}/{rank}", person.note)
                return
            checkup = Checkup(launch, person.facts, person.trust, patience_s=patience_s, clock=lambda: time.time() + person.ahead_s)
            found = checkup.run(lambda: (MACHINE, None))
        except PacelineError as error:
            raised[rank] = str(error)
        else:
            reports.append(found)

    threads = [threading.Thread(target=take_part, args=(rank, one), daemon=True) for rank, one in enumerate(people) if one.comes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    (report,) = [found for found in reports if found is not None]
    return report, raised


def sentences(report: Report) -> list[str]:
    return [f"{one.gravity}: {one.sentence}" for one in report.advice]


def test_three_hosts_visit_each_other_and_all_is_well() -> None:
    report, raised = examined(Person(facts("a")), Person(facts("a"), local_rank=1), Person(facts("b")), Person(facts("c")))
    assert not raised
    assert report.is_well
    assert [(host.facts.name, host.rank, host.num_processes) for host in report.hosts] == [("a", 0, 2), ("b", 2, 1), ("c", 3, 1)]
    assert {(visit.visitor, visit.host) for visit in report.visits} == {(a, b) for a in (0, 2, 3) for b in (0, 2, 3) if a != b}
    for visit in report.visits:
        (way,) = visit.ways
        assert not way.error
        assert 1e-7 < way.round_trip_s < 0.5
        assert abs(way.ahead_s) <= way.ahead_error_s + 1e-3
        for rate in (way.bytes_per_s, visit.two_bytes_per_s, visit.wire_bytes_per_s, visit.wire_two_bytes_per_s):
            assert 1e5 < rate < 1e12
    assert not any(thread.name.startswith("paceline") for thread in threading.enumerate())


def test_with_a_key_all_addresses_are_tried_over_tls(tmp_path: Path) -> None:
    write_key_file(tmp_path / "job.key")
    trust = Trust(read_key_file(tmp_path / "job.key"))
    addresses = (Interface("lo", HERE), Interface("lo2", "127.0.0.2"))
    report, raised = examined(*(Person(facts(name, key="job.key", wire="tls", addresses=addresses), trust) for name in "ab"))
    assert not raised
    assert [[way.address for way in visit.ways] for visit in report.visits] == [[HERE, "127.0.0.2"]] * 2
    assert all(visit.address == HERE and visit.wire_bytes_per_s > 1e5 for visit in report.visits)


@pytest.mark.parametrize("odd", ["another", "none"])
def test_a_host_with_another_key_or_none_is_named_and_visits_nobody(odd: str, tmp_path: Path) -> None:
    keys = [tmp_path / "job.key", tmp_path / "another.key"]
    for key in keys:
        write_key_file(key)
    ours, another = (Trust(read_key_file(key)) for key in keys)
    strange = Person(facts("c", key="another.key"), another) if odd == "another" else Person(facts("c"), PLAIN)
    report, raised = examined(Person(facts("a", key="job.key"), ours), Person(facts("b", key="job.key"), ours), strange)
    assert {(visit.visitor, visit.host) for visit in report.visits} == {(0, 1), (1, 0)}
    told = {"another": "fails: c has another key than a: copy one key file to every host", "none": "fails: c has no key"}[odd]
    assert [sentence for sentence in sentences(report) if told in sentence]
    assert raised[1] == "something will not work, rank 0 has printed what"
    assert raised[2].startswith("rank 2 does not have the key of rank 0")
    secrets = [trust.secret for trust in (ours, another)]
    assert not [secret for secret in secrets if secret.hex() in str(report)]


def test_versions_limits_disks_and_clocks_that_differ_are_named_with_their_hosts() -> None:
    odd = facts("b", paceline="0.2.0", torch="2.8.0+cu128", open_files=(100, 4096), out_free_bytes=5 << 20)
    report, raised = examined(Person(facts("a")), Person(odd, ahead_s=3.0))
    told = sentences(report)
    assert "fails: hosts differ in Paceline: 0.1.0 on a; 0.2.0 on b" in told
    assert "fails: hosts differ in torch: 2.9.0 on a; 2.8.0 on b" in told
    assert "fails: b allows 100 open files a process, this job may need 144: ulimit -n 144" in told
    assert "note: hosts differ in the build of torch: cpu on a; cu128 on b" in told
    assert "note: hosts differ in the limit of open files: 4096 on a; 100 on b" in told
    assert "note: b has 5 MiB left on the disk of " in told
    (clock,) = [sentence for sentence in told if "clock" in sentence]
    assert clock.startswith("note: the clock of b is 3.0 s (± ")
    assert clock.endswith("ahead of that of a: times in logs do not compare, training does not mind")
    assert list(raised) == [1]


def test_who_does_not_come_is_named_and_the_others_are_examined() -> None:
    report, raised = examined(Person(facts("a")), Person(facts("b"), comes=False), Person(facts("c")), patience_s=0.5)
    assert report.missing == (1,)
    assert "fails: rank 1 did not come: is it started, and does its host reach MASTER_ADDR and MASTER_PORT?" in sentences(report)
    assert {(visit.visitor, visit.host) for visit in report.visits} == {(0, 2), (2, 0)}
    assert list(raised) == [2]


def test_a_host_with_a_version_that_describes_itself_differently_is_named() -> None:
    report, _ = examined(Person(facts("a")), Person(facts("b")), Person(facts("c"), note=b'{"rank": "third"}'))
    assert {(visit.visitor, visit.host) for visit in report.visits} == {(0, 1), (1, 0)}
    assert "fails: hosts differ in Paceline: 0.1.0 on a, b; a version that describes itself differently on rank 2" in sentences(report)


class Walled(Doors):
    """The doors of a host whose ports a firewall keeps shut."""

    def _open(self, me: Address, at: Interface, first_port: int) -> None:
        super()._open(me, at, first_port)
        self.doors[-1] = replace(self.doors[-1], wire_port=free_port())


def test_a_port_that_is_shut_is_told_with_both_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.plan.doctor.checkup.Doors", Walled)
    report, raised = examined(Person(facts("a", ports="32768-60999")), Person(facts("b")))
    told = "b does not reach a at 127.0.0.1, where a job would look for it (Connection refused), nor at any other address"
    assert f"fails: {told}: let TCP through to its ports 32768-60999" in sentences(report)
    assert list(raised) == [1]


@pytest.mark.parametrize("num_hosts", [0, 1, 2, 3, 4, 7, 8])
def test_everybody_meets_everybody_once_in_disjoint_pairs(num_hosts: int) -> None:
    ranks = list(range(0, 3 * num_hosts, 3))
    rounds = [pairs_of(ranks, number) for number in range(num_rounds(num_hosts))]
    for pairs in rounds:
        assert len({rank for pair in pairs for rank in pair}) == 2 * len(pairs)
    assert sorted(pair for pairs in rounds for pair in pairs) == sorted(combinations(ranks, 2))


# --- sentences of reports as they come -------------------------------------------------------------------


def two_hosts(ways: Sequence[Way], **other: Any) -> Report:
    """Host a has visited host b, whose advertised address is 10.0.1.2, and found `ways`."""
    hosts = (Host(0, 1, facts("a", advertised="10.0.1.1")), Host(1, 1, facts("b", advertised="10.0.1.2", ports="32768-60999", **other)))
    reached = [way for way in ways if not way.error]
    return Report("a test", hosts, (Visit(0, 1, tuple(ways), reached[0].address if reached else ""),))


SLOW = Way("eth1", "10.0.1.2", bytes_per_s=12.5e6)
FAST = Way("eth0", "10.0.0.2", bytes_per_s=125e6)
CUT = replace(SLOW, error="no answer within 2 s")


@pytest.mark.parametrize(
    ("ways", "says"),
    [
        (
            [SLOW, FAST],
            (
                "slow: b is 10 times as fast at 10.0.0.2 (eth0, 1 Gbit/s) as at 10.0.1.2 (eth1, 100 Mbit/s), where a job would look "
                "for it: set PACELINE_HOST=eth0 there"
            ),
        ),
        (
            [CUT, FAST],
            (
                "fails: a does not reach b at 10.0.1.2, where a job would look for it (no answer within 2 s): set "
                "PACELINE_HOST=10.0.0.2 on b, which is reached"
            ),
        ),
        (
            [CUT],
            (
                "fails: a does not reach b at 10.0.1.2, where a job would look for it (no answer within 2 s), nor at any other address: "
                "let TCP through to its ports 32768-60999"
            ),
        ),
    ],
)
def test_the_way_to_a_host_is_judged_by_all_its_addresses(ways: list[Way], says: str) -> None:
    assert [f"{one.gravity}: {one.sentence}" for one in advice_for(two_hosts(ways))] == [says]


def test_a_clock_that_is_days_off_fails_with_tls() -> None:
    (advice,) = advice_for(two_hosts([replace(SLOW, ahead_s=-90000.0, ahead_error_s=1e-3)], wire="tls"))[:1]
    assert "hosts differ in PACELINE_WIRE" in advice.sentence
    told = [one.sentence for one in advice_for(two_hosts([replace(SLOW, ahead_s=-90000.0, ahead_error_s=1e-3)], wire="tls"))]
    assert "the clock of b is 90,000.0 s (± 1 ms) behind that of a: certificates may count as not valid there; set the clock" in told


def test_without_any_key_nothing_is_measured_and_the_way_out_is_told() -> None:
    hosts = tuple(Host(rank, 1, facts(str(rank), place_error="10.0.0.1 is not a loopback address")) for rank in range(2))
    (advice,) = advice_for(Report("a test", hosts))
    assert advice.gravity == "fails"
    assert "make one with `paceline keys new job.key`" in advice.sentence


def test_a_host_that_advertises_another_address_need_not_be_reached_at_its_own() -> None:
    (advice,) = advice_for(two_hosts([CUT, FAST], outside="203.0.113.5"))
    told = "not all reach b at 10.0.1.2, but a job would look for it at 203.0.113.5 (PACELINE_ADVERTISE), which a checkup does not visit"
    assert (advice.gravity, advice.sentence) == ("note", told)
    assert list(advice_for(two_hosts([SLOW, FAST], outside="203.0.113.5"))) == []


def test_the_tables_name_every_host_and_way() -> None:
    written = StringIO()
    console = Console(width=200, file=written)
    report = two_hosts([SLOW, FAST])
    tell_report(console, replace(report, advice=tuple(advice_for(report))))
    text = written.getvalue()
    assert "2 hosts, because a test" in text
    assert "from \\ to" in text
    assert "1. slow: b is 10 times as fast" in text
    assert text.splitlines()[-1] == "nothing was found that keeps a job from running"


# --- alone -----------------------------------------------------------------------------------------------


def test_alone_it_looks_at_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--out", str(tmp_path / "runs")]) == 0
    report = json.loads(capsys.readouterr().out)
    (host,) = report["hosts"]
    assert host["facts"]["torch"].startswith("2.")
    assert host["facts"]["out"] == str(tmp_path)
    assert host["facts"]["has_memory_files"]
    assert host["machine"]["tcp_bytes_per_s"] > 1e6


def test_a_key_that_others_can_read_and_a_file_in_the_place_of_out_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "job.key"
    write_key_file(key)
    key.chmod(0o644)
    monkeypatch.setenv("PACELINE_KEY_FILE", str(key))
    assert main(["doctor", "--out", str(key)]) == 1
    out = capsys.readouterr().out
    assert f"the key file {key} has mode 0644, so others can read or change it: chmod 600 {key}" in out
    assert f"--out cannot be used: {key} is not a directory" in out
    assert "a job will not run well before that is mended" in out


def test_the_facts_of_this_host_name_its_addresses_and_its_key(tmp_path: Path) -> None:
    key = tmp_path / "job.key"
    write_key_file(key)
    launch = Launch("a test", "", 0, 2, 0, (HERE, 1))
    found = facts_here({"PACELINE_KEY_FILE": str(key), "PACELINE_WIRE": "tls"}, tmp_path, launch)
    assert (found.key, found.wire, found.place_error) == (str(key), "tls", "")
    assert found.addresses == (Interface("lo", HERE),)
    assert facts_here({"PACELINE_HOST": "10.9.9.9"}, tmp_path, launch).place_error.startswith("10.9.9.9 is not a loopback address")
    assert facts_here({"PACELINE_PORT": "0"}, tmp_path, launch).place_error.startswith("PACELINE_PORT: '0' is not allowed")
    known = facts_here({"PACELINE_PORT": "29600"}, tmp_path, launch)
    assert (known.first_port, known.ports, known.place_error) == (29600, "29600-29601", "")
    outside = facts_here({"PACELINE_ADVERTISE": "203.0.113.5:31000"}, tmp_path, launch)
    assert (outside.outside, outside.place_error[:11]) == ("203.0.113.5", "203.0.113.5")


def test_a_host_is_visited_at_the_ports_of_a_job_where_these_are_known() -> None:
    port = free_neighbours()
    doors = Doors(0, (Interface("lo", HERE),), PLAIN, time.time, first_port=port)
    again = Doors(0, (Interface("lo", HERE),), PLAIN, time.time, first_port=port)
    try:
        assert [(door.wire_port, door.plain_port) for door in doors.doors] == [(port, port + 1)]
        assert again.errors == [f"server 0 cannot listen at {HERE}:{port}: Address already in use"]
    finally:
        doors.close()
        again.close()
