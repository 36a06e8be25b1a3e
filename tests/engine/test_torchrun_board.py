"""Before there is a run: who cannot be found, who has trouble, who is of another job or version; each told in one sentence."""

from __future__ import annotations

import errno
import os
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from launch import free_port
from paceline.config import resolve
from paceline.engine.local.child import Brief
from paceline.engine.torchrun import board
from paceline.engine.torchrun.board import Board, TroubleElsewhere, understood
from paceline.engine.torchrun.companions import Companion, check_alike
from paceline.engine.torchrun.entrance import Entrance, entrance_of
from paceline.engine.torchrun.launch import Launch
from paceline.engine.torchrun.nursery import Nursery
from paceline.engine.torchrun.place import host_of, silence_of
from paceline.errors import ConfigError, DeadlineError, ProtocolError, WriteError
from paceline.messages import Address
from paceline.transport.dial import Endpoint
from paceline.transport.keys import _new_key, read_key_file, write_key_file
from paceline.transport.trust import Trust

HERE = socket.gethostname()


def launch(rank: int, port: int, host: str = "127.0.0.1") -> Launch:
    return Launch("a launcher", "it says so", rank, 2, 0, (host, port))


@pytest.fixture
def two() -> tuple[Board, Board]:
    port = free_port()
    first = Board(launch(0, port), Trust())
    return first, Board(launch(1, port), Trust(), open_s=10.0)


def test_a_note_that_never_comes_is_waited_for_with_a_deadline(two: tuple[Board, Board]) -> None:
    with pytest.raises(DeadlineError, match=r"^rank 1 waited 0.2 s for rank 0 to call paceline.init\(\), and it did not$"):
        two[1].read("settings", "rank 0", timeout_s=0.2)


def test_trouble_is_heard_by_whoever_waits_and_then_by_the_one_that_keeps_the_store(two: tuple[Board, Board]) -> None:
    first, second = two
    teller = threading.Thread(target=first.tell_trouble, args=("no key\x1b[2J",))
    teller.start()
    with pytest.raises(TroubleElsewhere, match=rf"^rank 0 on {HERE}: no key\[2J$") as told:
        second.read("settings", "rank 0", timeout_s=10.0)
    assert teller.is_alive()
    second.tell_trouble(str(told.value))
    teller.join(5.0)
    assert not teller.is_alive()


def test_a_host_with_another_key_is_named(two: tuple[Board, Board], tmp_path: Path) -> None:
    key = tmp_path / "job.key"
    write_key_file(key)
    port = two[0]._launch.address[1]
    Board(launch(1, port), Trust(read_key_file(key))).write("companion/1", b"{}")
    with pytest.raises(ProtocolError, match="what rank 1 has written into the store is not signed with this job's key"):
        two[0].read("companion/1", "rank 1")


def test_a_port_in_use_and_one_where_nobody_or_somebody_else_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        told = rf"^rank 0 cannot open the store at 127.0.0.1:{port} \(MASTER_ADDR and MASTER_PORT\): {os.strerror(errno.EADDRINUSE)}"
        with pytest.raises(ConfigError, match=told):
            Board(launch(0, port), Trust())
        with pytest.raises(ConfigError, match=f"^rank 1 cannot reach the store at 127.0.0.1:{port} .* has not answered within 1.2 s"):
            Board(launch(1, port), Trust(), open_s=1.0)
    port = free_port()
    with pytest.raises(ConfigError, match=f"^rank 1 cannot reach the store at 127.0.0.1:{port} "):
        Board(launch(1, port), Trust(), open_s=1.0)


def test_a_master_that_no_name_server_knows() -> None:
    told = rf"^MASTER_ADDR nowhere.invalid cannot be reached from {HERE}: .*; set PACELINE_HOST to this host's own address$"
    with pytest.raises(ConfigError, match=told):
        host_of(launch(1, 1, "nowhere.invalid"), {})


def test_hosts_with_other_versions_are_named() -> None:
    first = Companion(0, 0, "a", "0.1.0", "2.13.0+cpu")
    check_alike([first, Companion(1, 0, "b", "0.1.0", "2.13.0+cu128")])
    with pytest.raises(ConfigError, match=r"^rank 1 on b has torch 2.9.1, and rank 0 on a has 2.13.0\+cpu: install the same version"):
        check_alike([first, Companion(1, 0, "b", "0.1.0", "2.9.1")])
    with pytest.raises(ConfigError, match=r"^rank 1 on b has Paceline 0.2.0, and rank 0 on a has 0.1.0: install the same version"):
        check_alike([first, Companion(1, 0, "b", "0.2.0", "2.13.0")])
    with pytest.raises(ProtocolError, match=r"^rank 1 writes as another version of Paceline does: install the same one on every host$"):
        understood(b'{"rank": 1}', Companion, 1)


def test_a_clock_that_is_before_or_after_the_keys_time_is_named_with_its_host(tmp_path: Path) -> None:
    for days, told in ((3, f"is good from .* and the clock of {HERE} says"), (-400, f"was good until .* and the clock of {HERE} says")):
        key = tmp_path / f"{days}.key"
        key.write_text(_new_key(datetime.now(UTC) + timedelta(days=days), 365))
        key.chmod(0o600)
        with pytest.raises(ConfigError, match=told):
            read_key_file(key)


def test_a_run_directory_that_cannot_be_made_is_named_with_its_host(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "run"
    brief = Brief("", "server", 0, 0, 0, -1, -1, resolve(cores=1, stamp="now"))
    with pytest.raises(WriteError, match=f"the run directory {out} cannot be written on {HERE}: "):
        Nursery(out, 30.0).start(brief)


def test_what_a_child_prints_as_it_ends_is_told_and_logged(tmp_path: Path) -> None:
    nursery = Nursery(tmp_path, 30.0)
    blank = Brief("", "server", 3, 0, 0, -1, -1, resolve(cores=1, stamp="now"))
    with pytest.raises(ConfigError, match=r"^server 3 ended as it began, and printed last: .*No module named paceline\.nothing$"):
        nursery.start(nursery.brief(blank), {"server": "paceline.nothing"})
    (child,) = nursery.children
    assert child.reap() == 1
    child.close()
    assert "No module named paceline.nothing" in (tmp_path / "logs" / "server-3.log").read_text()


@pytest.mark.parametrize("given", ["500ms", "2h", "soon"])
def test_a_silence_that_is_not_allowed(given: str) -> None:
    assert silence_of({"PACELINE_SILENCE": " 2m "}) == 120.0
    with pytest.raises(ConfigError, match=f"^PACELINE_SILENCE: '{given}' is not "):
        silence_of({"PACELINE_SILENCE": given})


def test_where_a_host_is_reached_may_be_another_place_than_where_it_listens() -> None:
    coordinator, server, here = Address("coordinator", 0), Address("server", 3), Endpoint("10.0.0.7", 40_000)
    assert entrance_of({}) == Entrance()
    assert (Entrance().port_of(server), Entrance().reached_at(server, here)) == (0, here)
    entrance = entrance_of({"PACELINE_PORT": "29600", "PACELINE_ADVERTISE": " gateway:31000 "})
    assert [entrance.port_of(who) for who in (coordinator, server)] == [29600, 29601]
    assert [str(entrance.reached_at(who, here)) for who in (coordinator, server)] == ["gateway:31000", "gateway:31001"]
    assert str(entrance_of({"PACELINE_ADVERTISE": "[fd00::1]"}).reached_at(server, here)) == "[fd00::1]:40000"


@pytest.mark.parametrize("given", ["0", "65535", "http", "-1", "29600-29610"])
def test_a_port_that_is_not_allowed(given: str) -> None:
    with pytest.raises(ConfigError, match=f"^PACELINE_PORT: '{given}' is not allowed, it must be from 1 to 65534"):
        entrance_of({"PACELINE_PORT": given})


@pytest.mark.parametrize("given", ["gateway:", "gateway:0", "fd00::1", ":29600", "a b:1"])
def test_an_address_that_is_not_allowed(given: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^PACELINE_ADVERTISE: '.*' is not allowed, it must be HOST or HOST:PORT, with \[HOST\] for IPv6$"
    ):
        entrance_of({"PACELINE_ADVERTISE": given})
