"""Where the processes of a launch find each other: notes in the launcher's store, each signed with the job's key where there is one.

The store itself is torch's TCPStore, which authenticates nobody: a note that is not of this job is refused, and whoever
is found through one proves itself in the handshake.
"""

from __future__ import annotations

import hmac
import socket
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError, TCPStore

from paceline.engine.torchrun.launch import Launch
from paceline.errors import ConfigError, DeadlineError, PeerLostError, ProtocolError
from paceline.transport.trust import Trust

START_S = 120.0
"""How long processes may take from their launch to `paceline.init()`: imports, and hosts that come up late."""
_SIGNATURE_BYTES = 32
MOST_NOTE_BYTES = 1 << 20


class Board:
    """The notes of one attempt of a launch. `awaited` is what others are waited for to do, `open_s` how long for the store."""

    def __init__(self, launch: Launch, trust: Trust, *, awaited: str = "call paceline.init()", open_s: float = START_S) -> None:
        self._launch = launch
        self._awaited = awaited
        self._secret = trust.secret
        self._prefix = f"paceline/{launch.attempt}/{launch.world_size}"
        self._store = _open_store(launch, open_s)

    def write(self, name: str, note: bytes) -> None:
        """Put a note up, in place of one of that name."""
        self._store.set(f"{self._prefix}/{name}", self._sign(name, note) + note)  # pyright: ignore[reportArgumentType] - it takes bytes

    def read(self, name: str, whose: str, timeout_s: float = START_S) -> bytes:
        """The note `name` of `whose`. Raises DeadlineError when there is none in time, ProtocolError when it is not of this job."""
        note, is_ours = self.peek(name, whose, timeout_s)
        if not is_ours:
            raise ProtocolError(f"what {whose} has written into the store is not signed with this job's key: is it on every host?")
        return note

    def peek(self, name: str, whose: str, timeout_s: float = START_S) -> tuple[bytes, bool]:
        """The same, and whether it is signed with this job's key: of one that is not, nothing may be believed."""
        key = f"{self._prefix}/{name}"
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
            signed = self._store.get(key)
        except DistNetworkError as error:
            host, port = self._launch.address
            raise PeerLostError(
                f"rank {self._launch.rank} lost the store at {host}:{port}, while it waited for {whose}: {_short(error)}"
            ) from error
        except DistStoreError as error:
            who = f"rank {self._launch.rank} waited {timeout_s:g} s for {whose}"
            raise DeadlineError(f"{who} to {self._awaited}, and it did not") from error
        note = signed[_SIGNATURE_BYTES:]
        is_ours = len(signed) <= MOST_NOTE_BYTES and hmac.compare_digest(signed[:_SIGNATURE_BYTES], self._sign(name, note))
        return note[:MOST_NOTE_BYTES], is_ours

    def count(self, name: str) -> int:
        """How often this was asked before."""
        return int(self._store.add(f"{self._prefix}/{name}", 1)) - 1

    def _sign(self, name: str, note: bytes) -> bytes:
        return hmac.digest(self._secret, b"paceline note\0" + f"{self._prefix}/{name}\0".encode() + note, "sha256")


def _short(error: Exception) -> str:
    """The first line of what torch says, whose others are a C++ stack."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _open_store(launch: Launch, open_s: float) -> TCPStore:
    host, port = launch.address
    timeout = timedelta(seconds=open_s)
    try:
        if launch.has_store or launch.rank:
            return TCPStore(host, port, None, False, timeout, wait_for_workers=False)
        return _serve_store(host, port, timeout)
    except (RuntimeError, OSError) as error:
        what = "open" if launch.rank == 0 and not launch.has_store else "reach"
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else _short(error)
        raise ConfigError(f"rank {launch.rank} cannot {what} the store at {host}:{port} (MASTER_ADDR and MASTER_PORT): {reason}") from error


def _serve_store(host: str, port: int, timeout: timedelta) -> TCPStore:
    """The store of a launcher that keeps none, at this address only: without a socket of ours it would listen at all of them."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.create_server(address[:2], family=family, backlog=1024) as listener:
        return TCPStore(host, port, None, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach())
