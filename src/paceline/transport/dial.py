"""Making a connection to a port of another host: TCP, TLS where it is due, and the handshake, within one deadline."""

from __future__ import annotations

import secrets
import socket
import ssl
from time import monotonic
from typing import NamedTuple

from paceline.errors import PacelineError, PeerLostError, ProtocolError
from paceline.messages import Address
from paceline.transport.handshake import NONCE_BYTES, Identity, Session, Talk, connects
from paceline.transport.stream import Line, hurry
from paceline.transport.trust import Trust

_SAME = "are the same key file and --wire on both hosts?"


class Endpoint(NamedTuple):
    """Where a port listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def dial(endpoint: Endpoint, me: Identity, peer: Address, trust: Trust, *, timeout_s: float) -> Line:
    """A connection to `peer`, who has proved itself. Raises PeerLostError or ProtocolError with the reason."""
    trust.check(endpoint.host)
    where = f"{me.address} cannot reach {peer} at {endpoint}"
    deadline_s = monotonic() + timeout_s
    try:
        plain = socket.create_connection(endpoint, timeout_s)
        hurry(plain)
        sock = trust.wrap(plain, server_side=False)
    except OSError as error:
        raise _failure(where, error, timeout_s) from error
    try:
        # a name may stand for another address by now
        trust.check(str(sock.getpeername()[0]))
        if isinstance(sock, ssl.SSLSocket):
            sock.settimeout(_left(deadline_s))
            sock.do_handshake()
        talk = connects(me, peer, wire=trust.wire, key=trust.secret, nonce=secrets.token_bytes(NONCE_BYTES))
        session = _converse(sock, talk, deadline_s)
    except (OSError, EOFError, ProtocolError) as error:
        sock.close()
        raise _failure(where, error, timeout_s) from error
    except BaseException:
        sock.close()
        raise
    return Line(sock, trust.seals(session), session)


def _failure(where: str, error: Exception, timeout_s: float) -> PacelineError:
    """The sentence of what went wrong: what the network did, or what the two ends think of each other."""
    if isinstance(error, TimeoutError):
        return PeerLostError(f"{where}: no answer within {timeout_s:.3g} s")
    if isinstance(error, ssl.SSLError):
        return ProtocolError(f"{where}: the TLS handshake failed ({error.reason or error}): {_SAME}")
    if isinstance(error, (EOFError, ConnectionResetError, BrokenPipeError)):
        return PeerLostError(f"{where}: it ended the connection during the handshake: {_SAME}")
    if isinstance(error, OSError):
        return PeerLostError(f"{where}: {error.strerror or error}")
    return ProtocolError(f"{where}: {error}")


def _converse(sock: socket.socket, talk: Talk, deadline_s: float) -> Session:
    """Hold a talk over a blocking socket."""
    outgoing, need = next(talk)
    while True:
        sock.settimeout(_left(deadline_s))
        sock.sendall(outgoing)
        heard = b""
        while len(heard) < need:
            sock.settimeout(_left(deadline_s))
            data = sock.recv(need - len(heard))
            if not data:
                raise EOFError
            heard += data
        try:
            outgoing, need = talk.send(heard)
        except StopIteration as end:
            return end.value


def _left(deadline_s: float) -> float:
    left_s = deadline_s - monotonic()
    if left_s <= 0.0:
        raise TimeoutError
    return left_s
