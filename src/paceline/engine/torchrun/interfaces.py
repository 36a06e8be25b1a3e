"""The addresses that this host has, by the interface of each: asked of the kernel, without a name service (Linux)."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct
import sys
from pathlib import Path
from typing import NamedTuple

_SIOCGIFCONF, _SIOCGIFFLAGS = 0x8912, 0x8913
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_ROW = struct.Struct("16s2xH4s16x")
_MOST_ROWS = 1024
_INET6 = Path("/proc/net/if_inet6")
_TENTATIVE, _DEPRECATED = 0x40, 0x20


class Interface(NamedTuple):
    """An address, and the interface that has it."""

    name: str
    address: str


def interfaces() -> list[Interface]:
    """Every address at which another host might reach this one: of interfaces that are up, without loopback and link-local ones."""
    if sys.platform != "linux":
        return []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = [one for one in (*_inet(probe), *_inet6()) if _is_up(probe, one.name)]
    return [one for one in found if _is_for_others(one.address)]


def _inet(probe: socket.socket) -> list[Interface]:
    rows = array.array("B", bytes(_ROW.size * _MOST_ROWS))
    asked = struct.pack("iP", len(rows), rows.buffer_info()[0])
    size = struct.unpack("iP", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, asked))[0]
    return [
        Interface(name.rstrip(b"\0").decode().partition(":")[0], socket.inet_ntoa(address))
        for name, _, address in _ROW.iter_unpack(rows.tobytes()[:size])
    ]


def _inet6() -> list[Interface]:
    try:
        rows = [line.split() for line in _INET6.read_text(encoding="ascii").splitlines()]
    except OSError:
        return []
    return [
        Interface(name, str(ipaddress.IPv6Address(bytes.fromhex(address))))
        for address, _, _, _, flags, name in rows
        if not int(flags, 16) & (_TENTATIVE | _DEPRECATED)
    ]


def _is_up(probe: socket.socket, name: str) -> bool:
    try:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, struct.pack("16s24x", name.encode()))
    except OSError:
        return False
    return struct.unpack_from("H", answer, 16)[0] & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING


def _is_for_others(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return not (found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast)
