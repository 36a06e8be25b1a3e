"""What a host says of itself: versions, memory, limits, disk, key and addresses. Nothing is measured here."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from paceline.engine.surroundings import num_cores
from paceline.engine.torchrun.entrance import Entrance, entrance_of
from paceline.engine.torchrun.interfaces import Interface, interfaces
from paceline.engine.torchrun.launch import Launch
from paceline.engine.torchrun.place import host_of, trust_at
from paceline.errors import ConfigError, PacelineError
from paceline.transport import memory
from paceline.transport.keys import JobKey
from paceline.transport.trust import Trust, is_loopback, key_of
from paceline.transport.wire import VERSION

EXTRAS = {"ray": "ray", "hypothesis": "test", "sklearn": "test", "atheris": "fuzz"}
"""Modules that bring what is optional, and the extra that installs each."""
MOST_ADDRESSES = 8
_MEMORY = Path("/proc/meminfo")
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Facts(msgspec.Struct, frozen=True):
    """One host. `out` is the nearest directory of --out that exists; sizes in bytes, `open_files` as (soft, hard) limits.

    `key` is "" without one, else the path; `key_error` says why it cannot be used. `advertised` is the address that a job
    would use here, `place_error` why there is none. `ports` are those that a job would use: `first_port` and the next, or some of a range.
    `outside` is where others reach this host by PACELINE_ADVERTISE, "" without it.
    """

    name: str = ""
    system: str = ""
    python: str = ""
    torch: str = ""
    paceline: str = ""
    protocol: int = 0
    extras: tuple[str, ...] = ()
    cores: int = 0
    memory_bytes: int = 0
    available_bytes: int = 0
    has_memory_files: bool = False
    open_files: tuple[int, int] = (0, 0)
    out: str = ""
    out_free_bytes: int = 0
    out_error: str = ""
    key: str = ""
    key_error: str = ""
    wire: str = ""
    advertised: str = ""
    place_error: str = ""
    addresses: tuple[Interface, ...] = ()
    ports: str = ""
    first_port: int = 0
    outside: str = ""


def facts_here(environ: Mapping[str, str], out: Path, launch: Launch | None) -> Facts:
    """What can be said of this host without asking others."""
    key, key_error = _key(environ)
    advertised, place_error, wire, entrance = "", "", "", Entrance()
    if launch is not None:
        try:
            entrance = entrance_of(environ)
            advertised = host_of(launch, environ)
            wire = trust_at(advertised, environ).wire.name.lower()
        except PacelineError as error:
            place_error = str(error)
    port = entrance.port
    folder, free_bytes, out_error = _disk(out)
    memory_bytes, available_bytes = _memory()
    return Facts(
        name=socket.gethostname(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=_version("torch"),
        paceline=_version("paceline"),
        protocol=VERSION,
        extras=tuple(sorted({extra for module, extra in EXTRAS.items() if find_spec(module) is not None})),
        cores=num_cores(),
        memory_bytes=memory_bytes,
        available_bytes=available_bytes,
        has_memory_files=_has_memory_files(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        out=str(folder),
        out_free_bytes=free_bytes,
        out_error=out_error,
        key=str(key.path) if key is not None else "",
        key_error=key_error,
        wire=wire,
        advertised=advertised,
        place_error=place_error,
        addresses=_addresses(advertised),
        ports=f"{port}-{port + 1}" if port else _ports(),
        first_port=port,
        outside=entrance.outside.host if entrance.outside is not None else "",
    )


def trust_here(facts: Facts, environ: Mapping[str, str]) -> Trust:
    """The protection of this host's connections; without a key that can be used, none, and then nothing leaves the host."""
    return trust_at(facts.advertised, environ) if facts.advertised and not facts.place_error else Trust()


def _key(environ: Mapping[str, str]) -> tuple[JobKey | None, str]:
    try:
        return key_of(environ.get("PACELINE_KEY_FILE")), ""
    except ConfigError as error:
        return None, str(error)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _disk(out: Path) -> tuple[Path, int, str]:
    """The nearest directory that is there, what is free on its disk, and why it cannot be written."""
    folder = out.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return folder, 0, f"{folder} is not a directory"
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return folder, 0, f"{folder} cannot be asked for its disk: {error.strerror}"
    return folder, free_bytes, "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written by user {os.getuid()}"


def _memory() -> tuple[int, int]:
    """All, and what is available (Linux)."""
    try:
        rows = dict(line.split(":", 1) for line in _MEMORY.read_text(encoding="ascii").splitlines())
        return 1024 * int(rows["MemTotal"].split()[0]), 1024 * int(rows["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return 0, 0


def _has_memory_files() -> bool:
    try:
        os.close(memory.create("doctor", 1))
    except (OSError, AttributeError):
        return False
    return True


def _addresses(advertised: str) -> tuple[Interface, ...]:
    """What others may try: the advertised address first; where a job stays on this host, loopback alone."""
    if not advertised:
        return ()
    found = interfaces()
    name = next((one.name for one in found if one.address == advertised), "lo" if is_loopback(advertised) else "")
    mine = Interface(name, advertised)
    others = () if is_loopback(advertised) else tuple(one for one in found if one.address != advertised)
    return (mine, *others)[:MOST_ADDRESSES]


def _ports() -> str:
    try:
        return "-".join(_PORTS.read_text(encoding="ascii").split())
    except OSError:
        return ""
