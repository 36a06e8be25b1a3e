"""What a port asks of whoever it talks to: how connections are protected, and with which key.

An address that is not loopback is never used without a key; with one, TLS is the default there.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from pathlib import Path

from paceline.errors import ConfigError
from paceline.transport.handshake import Session
from paceline.transport.keys import MEMBER_NAME, JobKey, read_key_file
from paceline.transport.wire import Checksum, HeaderChecksum, Mac, Seal, Wire


def is_loopback(host: str) -> bool:
    """Whether every address that `host` stands for stays on this machine; the empty host is every interface.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[4][0])).is_loopback for address in found)


class Trust:
    """How a port protects its connections. `checksum` false: on a plain wire payloads are not summed (to measure)."""

    def __init__(self, key: JobKey | None = None, wire: Wire | None = None, *, checksum: bool = True) -> None:
        self.key = key
        self.wire = wire if wire is not None else Wire.PLAIN if key is None else Wire.TLS
        self._checksum = checksum
        if self.wire is not Wire.PLAIN and key is None:
            raise ConfigError(f"--wire {self.wire.name.lower()} needs a key file: make one with `paceline keys new FILE`")
        # made now, so that what is wrong with the file is said before anything listens
        self._contexts: dict[bool, ssl.SSLContext] = {}
        if self.wire is Wire.TLS and key is not None:
            self._contexts = {server_side: key.tls(server_side=server_side) for server_side in (True, False)}

    def check(self, host: str) -> None:
        """Raise ConfigError when `host` asks for more protection than there is."""
        if self.wire is not Wire.PLAIN or is_loopback(host):
            return
        where = f"{host or 'every interface'} is not a loopback address"
        if self.key is None:
            raise ConfigError(f"{where}, so a key is needed: make one with `paceline keys new FILE`, set PACELINE_KEY_FILE on every host")
        raise ConfigError(f"{where}, so --wire must be tls or mac, got plain")

    @property
    def secret(self) -> bytes:
        """What the handshake proves; nothing without a key."""
        return self.key.secret if self.key is not None else b""

    def wrap(self, sock: socket.socket, *, server_side: bool) -> socket.socket:
        """The socket that is talked through: itself, or TLS whose handshake is still to be made."""
        if self.wire is not Wire.TLS:
            return sock
        name = None if server_side else MEMBER_NAME
        return self._contexts[server_side].wrap_socket(sock, server_side=server_side, server_hostname=name, do_handshake_on_connect=False)

    def seals(self, session: Session) -> tuple[Seal, Seal]:
        """The seals of what is sent and of what is received in a connection."""
        if self.wire is Wire.MAC:
            return Mac(session.send_key), Mac(session.receive_key)
        seal = HeaderChecksum() if self.wire is Wire.TLS or not self._checksum else Checksum()
        return seal, seal


def trust_for(host: str, key: JobKey | None, wire: Wire | None = None) -> Trust:
    """The protection that is due to `host`: TLS off this machine, MACs on it where there is a key; `wire` is the user's own wish."""
    if wire is None and key is not None:
        wire = Wire.MAC if is_loopback(host) else Wire.TLS
    trust = Trust(key, wire)
    trust.check(host)
    return trust


def key_of(environ_value: str | None) -> JobKey | None:
    """The key that PACELINE_KEY_FILE names, if it names one."""
    return read_key_file(Path(environ_value)) if environ_value else None
