"""Where a process of a launch is reached by the others, over TCP or as one that shares their memory, and with what protection."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep

import msgspec

from paceline.engine.remote.joint import Joint
from paceline.engine.remote.width import NARROW
from paceline.engine.torchrun.entrance import entrance_of
from paceline.engine.torchrun.interfaces import interfaces
from paceline.engine.torchrun.launch import Launch
from paceline.errors import ConfigError, PeerLostError, ProtocolError
from paceline.messages import Address
from paceline.settings import duration_s
from paceline.transport.dial import Endpoint
from paceline.transport.shm import SocketPort
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust, is_loopback, key_of, trust_for
from paceline.transport.wire import Wire

CONNECT_S = 30.0
RETRY_S = 1.0
SILENCE_S = 30.0
"""How long a process may go without a heartbeat: imports on a loaded host keep every thread from running for many seconds."""
LEAST_SILENCE_S, MOST_SILENCE_S = 1.0, 3600.0
LOOPBACK = "127.0.0.1"
MEMORY, TCP = "memory", "tcp"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Place(msgspec.Struct, frozen=True):
    """Where a process listens: at `host` and `port` for everyone, at the abstract `name` for those of its own `machine`."""

    host: str
    port: int
    name: str
    machine: str

    @property
    def endpoint(self) -> Endpoint:
        """Where it is reached over TCP."""
        return Endpoint(self.host, self.port)


def machine() -> str:
    """What all processes of this machine agree on, whatever containers they are in; nothing where the kernel does not tell."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def shares_memory(environ: Mapping[str, str]) -> bool:
    """Whether PACELINE_SAME_HOST lets processes of one machine share memory. Raises ConfigError."""
    wanted = environ.get("PACELINE_SAME_HOST", "").strip() or MEMORY
    if wanted not in (MEMORY, TCP):
        raise ConfigError(f"PACELINE_SAME_HOST: {wanted!r} is not allowed, it must be {MEMORY} or {TCP}")
    return wanted == MEMORY


def name_here(place: Place, environ: Mapping[str, str]) -> str:
    """The abstract socket of a process of this machine, if memory may be shared with it."""
    return place.name if place.machine and place.machine == machine() and shares_memory(environ) else ""


def connect_near(port: SocketPort, peer: Address, name: str) -> str:
    """Connect to a process of this machine, if it has a `name`; memory is shared with it then. Returns why that failed."""
    try:
        if name:
            port.connect(peer, name, timeout_s=CONNECT_S)
    except (PeerLostError, ProtocolError) as error:
        return str(error)
    return ""


def reach_all(
    near: SocketPort, far: TcpPort, members: Mapping[Address, tuple[Endpoint, str]], *, until_s: float = 0.0
) -> tuple[Joint, str]:
    """One port to all `members`, each by where it listens and its abstract socket: memory is shared with those that have one.

    Others are reached over TCP; until `until_s` a refusal may only mean that this worker's former life is thought to be there still, so
    they are asked again. Returns also why some memory is not shared. Raises PeerLostError or ProtocolError.
    """
    port = Joint(near, far)
    reasons: list[str] = []
    try:
        for peer, (endpoint, name) in members.items():
            reason = connect_near(near, peer, name)
            reasons += [reason] if reason else []
            if peer not in near.peers:
                _connect_far(far, peer, endpoint, until_s)
    except BaseException:
        port.close()
        raise
    return port, next(iter(reasons), "")


def _connect_far(port: TcpPort, peer: Address, endpoint: Endpoint, until_s: float) -> None:
    while True:
        try:
            port.connect(peer, endpoint, timeout_s=CONNECT_S, lanes=NARROW if peer.role == "server" else 0)
        except ProtocolError:
            if monotonic() + RETRY_S > until_s:
                raise
            sleep(RETRY_S)
        else:
            return


def host_of(launch: Launch, environ: Mapping[str, str]) -> str:
    """PACELINE_HOST, an address or an interface's name; else loopback if all are on one host, else the address towards MASTER_ADDR."""
    given = environ.get("PACELINE_HOST", "").strip()
    if given:
        return next((one.address for one in interfaces() if one.name == given), given)
    master, port = launch.address
    if launch.is_one_host or is_loopback(master):
        return LOOPBACK
    try:
        family, _, _, _, address = socket.getaddrinfo(master, port, type=socket.SOCK_DGRAM)[0]
        # nothing is sent: the kernel is asked which way it would go
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        where = f"MASTER_ADDR {master} cannot be reached from {socket.gethostname()}"
        raise ConfigError(f"{where}: {error.strerror or error}; set PACELINE_HOST to this host's own address") from error


def trust_at(host: str, environ: Mapping[str, str]) -> Trust:
    """The protection of connections at `host`, by PACELINE_KEY_FILE and PACELINE_WIRE. Raises ConfigError when it is too little.

    Where others reach this host at another address (PACELINE_ADVERTISE), they come from there: it is as much as either asks for.
    """
    outside = entrance_of(environ).outside
    if outside is not None and is_loopback(host):
        host = outside.host
    wanted = environ.get("PACELINE_WIRE", "").strip()
    names = {wire.name.lower(): wire for wire in Wire}
    if wanted and wanted not in names:
        raise ConfigError(f"PACELINE_WIRE: {wanted!r} is not allowed, it must be {' or '.join(names)}")
    return trust_for(host, key_of(environ.get("PACELINE_KEY_FILE")), names[wanted] if wanted else None)


def silence_of(environ: Mapping[str, str]) -> float:
    """How long a peer may go without a heartbeat before it counts as lost, by PACELINE_SILENCE. Raises ConfigError."""
    given = environ.get("PACELINE_SILENCE", "").strip()
    if not given:
        return SILENCE_S
    try:
        seconds = duration_s(given)
    except ConfigError as error:
        raise ConfigError(f"PACELINE_SILENCE: {error}") from error
    if not LEAST_SILENCE_S <= seconds <= MOST_SILENCE_S:
        raise ConfigError(f"PACELINE_SILENCE: {given!r} is not allowed, it must be from {LEAST_SILENCE_S:g}s to 1h")
    return seconds
