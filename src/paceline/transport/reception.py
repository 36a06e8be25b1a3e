"""Connections that have not proved themselves yet: each has a deadline, a fixed small memory, and there are only so many.

Whoever connects when the house is full takes the place of the one that has said the least for the longest, so that
strangers who say nothing keep nobody out.
"""

from __future__ import annotations

import secrets
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable

from paceline.errors import ProtocolError
from paceline.transport.handshake import NONCE_BYTES, Admit, Talk, accepts
from paceline.transport.stream import WOULD_BLOCK, Line, hurry, shut
from paceline.transport.trust import Trust

MAX_PENDING = 256
MAX_REFUSALS = 64
HANDSHAKE_S = 5.0

_ACCEPTS_PER_SWEEP = 64


class Pending:
    """A connection in its handshake."""

    def __init__(self, sock: socket.socket, host: str, talk: Talk, since_s: float) -> None:
        self.sock = sock
        self.host = host
        self.talk = talk
        self.since_s = since_s
        self.is_wrapped = not isinstance(sock, ssl.SSLSocket)
        self.num_said = 0
        self.heard = b""
        _, self.need = next(talk)


class Reception:
    """Takes connections in at a listening socket. `taken_in` gets those that were admitted; `refusals` tells of the others."""

    def __init__(self, trust: Trust, admit: Admit, taken_in: Callable[[Line], None], epoll: select.epoll) -> None:
        self.refusals: deque[str] = deque(maxlen=MAX_REFUSALS)
        self._trust = trust
        self._admit = admit
        self._taken_in = taken_in
        self._epoll = epoll
        self._pending: dict[int, Pending] = {}

    def __contains__(self, fd: int) -> bool:
        return fd in self._pending

    def accept(self, listener: socket.socket, now_s: float) -> bool:
        """Let those in who wait at the door, as strangers; false when the process has no descriptor left for anybody."""
        for _ in range(_ACCEPTS_PER_SWEEP):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return True
            except OSError:
                if not self._pending:
                    return False
                self._drop_one("no descriptor was left")
                return True
            if len(self._pending) >= MAX_PENDING:
                self._drop_one(f"{MAX_PENDING} others were in their handshake")
            talk = accepts(self._admit, wire=self._trust.wire, key=self._trust.secret, nonce=secrets.token_bytes(NONCE_BYTES))
            try:
                sock.setblocking(False)
                hurry(sock)
                pending = Pending(self._trust.wrap(sock, server_side=True), str(address[0]), talk, now_s)
            except OSError:
                # who has reset the connection already cannot even be asked for its address
                sock.close()
                continue
            self._pending[pending.sock.fileno()] = pending
            self._epoll.register(pending.sock.fileno(), select.EPOLLIN)
        return True

    def advance(self, fd: int) -> None:
        """Go on with one handshake, as far as what came allows."""
        pending = self._pending[fd]
        try:
            self._advance(pending)
        except WOULD_BLOCK:
            return
        except EOFError:
            self._drop(pending, "it ended the connection during the handshake")
        except ProtocolError as error:
            self._drop(pending, str(error))
        except ssl.SSLError as error:
            self._drop(pending, f"the TLS handshake failed ({error.reason or error}): is the same key file and --wire on both hosts?")
        except OSError as error:
            self._drop(pending, error.strerror or str(error))

    def _advance(self, pending: Pending) -> None:
        if not pending.is_wrapped:
            assert isinstance(pending.sock, ssl.SSLSocket)
            pending.sock.do_handshake()
            pending.is_wrapped = True
            pending.num_said += 1
        try:
            while True:
                self._hear(pending)
                outgoing, pending.need = pending.talk.send(pending.heard)
                pending.heard = b""
                # at most a hundred bytes into an empty buffer
                pending.sock.send(outgoing)
        except StopIteration as end:
            del self._pending[pending.sock.fileno()]
            self._epoll.unregister(pending.sock.fileno())
            self._taken_in(Line(pending.sock, self._trust.seals(end.value), end.value))

    def _hear(self, pending: Pending) -> None:
        while len(pending.heard) < pending.need:
            data = pending.sock.recv(pending.need - len(pending.heard))
            if not data:
                raise EOFError
            pending.num_said += 1
            pending.heard += data

    def sweep(self, now_s: float) -> None:
        """End the handshakes that take too long."""
        for pending in [p for p in self._pending.values() if now_s - p.since_s > HANDSHAKE_S]:
            self._drop(pending, f"its handshake took more than {HANDSHAKE_S:g} s")

    def _drop_one(self, reason: str) -> None:
        if self._pending:
            self._drop(min(self._pending.values(), key=lambda pending: (pending.num_said, pending.since_s)), reason)

    def _drop(self, pending: Pending, reason: str) -> None:
        del self._pending[pending.sock.fileno()]
        pending.talk.close()
        pending.sock.close()
        self.refusals.append(f"{pending.host}: {reason}")

    def close(self) -> None:
        """Close what is pending."""
        for pending in list(self._pending.values()):
            shut(pending.sock)
            self._drop(pending, "the port was closed")

    def abandon(self) -> None:
        """Close the descriptors of a forked child's copy."""
        for pending in self._pending.values():
            pending.sock.close()
