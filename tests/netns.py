"""Hosts of our own: network namespaces whose cables (veth) meet in a switch, with links as slow as wanted, and cables to cut.

What a test that was killed has left is removed by the next one: the names say whose they are.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

PREFIX = "paceline"
CABLE = "cable"
COMMAND_S = 10.0


class Host:
    """A network namespace with loopback and one cable, at `address`; `port` is the other end of that cable, in the switch."""

    def __init__(self, name: str, address: str, switch: str, port: str) -> None:
        self.name, self.address = name, address
        self._switch, self._port = switch, port

    def popen(self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[Any]:
        """Start a program on this host; its process is the one that is returned. `env` is its whole environment."""
        return subprocess.Popen(["ip", "netns", "exec", self.name, *argv], env=None if env is None else dict(env), **options)

    def ip(self, *arguments: str) -> None:
        """Run `ip` on this host."""
        _ip("-n", self.name, *arguments)

    def pids(self) -> list[int]:
        """The processes of this host that live."""
        return _pids(self.name)

    def cut(self) -> None:
        """Cut the cable: nothing arrives any more in either direction, and nobody is told."""
        _ip("-n", self._switch, "link", "set", self._port, "down")

    def mend(self) -> None:
        """Join the cable again."""
        _ip("-n", self._switch, "link", "set", self._port, "up")


@contextmanager
def namespaces(num_hosts: int = 2, *, rate: str | None = None, ipv6_only: bool = False) -> Iterator[tuple[Host, ...]]:
    """Hosts that reach each other, each sending at most at `rate` (as `tc` writes it: "100mbit"); skips where there can be none.

    At the end whatever runs on them is killed.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("needs root, ip and tc to make hosts of network namespaces")
    _remove_stale()
    base = f"{PREFIX}-{os.getpid()}-{_born(os.getpid())}-{token_hex(3)}"
    switch = f"{base}-switch"
    net = "fd77:31::{}" if ipv6_only else "10.77.31.{}"
    hosts = tuple(Host(f"{base}-{number}", net.format(number), switch, f"port{number}") for number in range(1, num_hosts + 1))
    try:
        try:
            _make(switch, hosts, rate)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
        yield hosts
    finally:
        for name in (*(host.name for host in hosts), switch):
            _remove(name)


def _make(switch: str, hosts: Sequence[Host], rate: str | None) -> None:
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", "switch", "type", "bridge")
    _ip("-n", switch, "link", "set", "switch", "up")
    for number, host in enumerate(hosts, 1):
        _ip("netns", "add", host.name)
        _ip("-n", switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", CABLE, "netns", host.name)
        _ip("-n", switch, "link", "set", f"port{number}", "master", "switch", "up")
        is_six = ":" in host.address
        # without a search for duplicates, in which an IPv6 address cannot be used for a second
        _ip("-n", host.name, "addr", "add", f"{host.address}/{64 if is_six else 24}", "dev", CABLE, *(["nodad"] if is_six else []))
        _ip("-n", host.name, "link", "set", "lo", "up")
        if is_six:
            _ip("-n", host.name, "addr", "del", "127.0.0.1/8", "dev", "lo")
        _ip("-n", host.name, "link", "set", CABLE, "up")
        if rate is not None:
            shape = ["tc", "-n", host.name, "qdisc", "add", "dev", CABLE, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
            subprocess.run(shape, check=True, timeout=COMMAND_S, capture_output=True)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, timeout=COMMAND_S, capture_output=True).stdout.decode()


def _born(pid: int) -> str:
    """When a process was started, in the kernel's ticks: with its number that is a name which no other process ever has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _pids(name: str) -> list[int]:
    with suppress(subprocess.CalledProcessError):
        return [int(pid) for pid in _ip("netns", "pids", name).split()]
    return []


def _remove(name: str) -> None:
    """Kill what runs there, and remove it; its end of a cable goes with it."""
    for pid in _pids(name):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], check=False, timeout=COMMAND_S, capture_output=True)


def _remove_stale() -> None:
    """Remove what tests have left that were killed."""
    folder = Path("/run/netns")
    for path in folder.iterdir() if folder.is_dir() else ():
        match path.name.split("-"):
            case [prefix, pid, born, _, _] if prefix == PREFIX and pid.isdigit() and _born(int(pid)) != born:
                _remove(path.name)
            case _:
                pass
