"""At which ports the processes of a host listen for other hosts, and where these reach them if that is somewhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from paceline.errors import ConfigError
from paceline.messages import Address
from paceline.transport.dial import Endpoint

MOST_PORT = (1 << 16) - 1
OFFSETS = {"coordinator": 0, "server": 1}


class Entrance(NamedTuple):
    """The coordinator listens at `port`, a server at `port` + 1; where `port` is 0, each at any that is free.

    Others reach the coordinator at `outside`, and the server at the port after that one. Where the port of `outside` is 0 they use
    its host and the ports at which the two listen; where `outside` is None, the host at which they listen too.

    >>> entrance = Entrance(29600, Endpoint("203.0.113.5", 31000))
    >>> entrance.port_of(Address("server", 0)), str(entrance.reached_at(Address("server", 0), Endpoint("10.0.0.7", 29601)))
    (29601, '203.0.113.5:31001')
    """

    port: int = 0
    outside: Endpoint | None = None

    def port_of(self, who: Address) -> int:
        """The port at which a process of this host is to listen."""
        return self.port and self.port + OFFSETS[who.role]

    def reached_at(self, who: Address, endpoint: Endpoint) -> Endpoint:
        """Where others reach a process that listens at `endpoint`."""
        if self.outside is None:
            return endpoint
        host, port = self.outside
        return Endpoint(host, port + OFFSETS[who.role] if port else endpoint.port)


def entrance_of(environ: Mapping[str, str]) -> Entrance:
    """The entrance by PACELINE_PORT and PACELINE_ADVERTISE. Raises ConfigError."""
    port, advertised = (environ.get(f"PACELINE_{name}", "").strip() for name in ("PORT", "ADVERTISE"))
    if port and not _is_first_port(port):
        raise ConfigError(f"PACELINE_PORT: {port!r} is not allowed, it must be from 1 to {MOST_PORT - 1}, with the next port free as well")
    found = re.fullmatch(r"(?:\[(?P<six>[^][]+)\]|(?P<host>[^][:\s]+))(?::(?P<port>.*))?", advertised)
    if advertised and (found is None or not (found["port"] is None or _is_first_port(found["port"]))):
        raise ConfigError(f"PACELINE_ADVERTISE: {advertised!r} is not allowed, it must be HOST or HOST:PORT, with [HOST] for IPv6")
    outside = Endpoint(found["six"] or found["host"], int(found["port"] or 0)) if advertised and found is not None else None
    return Entrance(int(port or 0), outside)


def _is_first_port(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and 1 <= int(text) < MOST_PORT
