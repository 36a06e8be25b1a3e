"""Where the processes of a launch find each other: notes in the launcher's store, each signed with the job's key where there is one.

The store itself is torch's TCPStore, which authenticates nobody: a note that is not of this job is refused, and whoever
is found through one proves itself in the handshake.
"""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import TypeVar

import msgspec
from torch.distributed import DistError, DistNetworkError, TCPStore

from paceline.engine.torchrun.launch import Launch
from paceline.errors import ConfigError, DeadlineError, PeerLostError, ProtocolError
from paceline.transport.store import first_line, serve_store
from paceline.transport.trust import Trust

T = TypeVar("T")

START_S = 120.0
"""How long processes may take from their launch to `paceline.init()`: imports, and hosts that come up late."""
_SIGNATURE_BYTES = 32
MOST_NOTE_BYTES = 1 << 20
ANSWER_S = 30.0
"""How long the store may take for an answer, when there is one."""
LOOK_S = 0.25
"""How often whoever waits for a note looks for it, and whether somebody has trouble."""
LINGER_S = 10.0
"""How long a process that keeps the store stays for the others to hear of its trouble."""
TROUBLE, MOST_TROUBLE = "trouble", 1000


class Trouble(msgspec.Struct, frozen=True):
    """What keeps a process from its run. It is not signed: a process without the key has trouble too."""

    rank: int
    host: str
    sentence: str

    def __str__(self) -> str:
        host, sentence = ("".join(filter(str.isprintable, text[:MOST_TROUBLE])) for text in (self.host, self.sentence))
        return f"rank {self.rank} on {host}: {sentence}"


class TroubleElsewhere(ConfigError):
    """Another process has said what keeps it from the run."""


class Board:
    """The notes of one attempt of a launch. `awaited` is what others are waited for to do, `open_s` how long for the store.

    Without `trust` it is for trouble only.
    """

    def __init__(self, launch: Launch, trust: Trust | None, *, awaited: str = "call paceline.init()", open_s: float = START_S) -> None:
        self._launch = launch
        self._awaited = awaited
        self._secret = trust.secret if trust is not None else b""
        self._prefix = f"paceline/{launch.attempt}/{launch.world_size}"
        self._keeps_store = launch.rank == 0 and not launch.has_store
        self._store = _open_store(launch, open_s)

    def _ask(self, act: Callable[[], T], timeout_s: float = ANSWER_S) -> T:
        try:
            return answered(act, timeout_s)
        except (TimeoutError, DistNetworkError) as error:
            host, port = self._launch.address
            raise PeerLostError(f"rank {self._launch.rank} lost the store at {host}:{port}: {first_line(error)}") from error

    def write(self, name: str, note: bytes) -> None:
        """Put a note up, in place of one of that name. Raises PeerLostError when the store is gone."""
        self._put(f"{self._prefix}/{name}", self._sign(name, note) + note)

    def _put(self, key: str, value: bytes) -> None:
        self._ask(lambda: self._store.set(key, value))  # pyright: ignore[reportArgumentType] - it takes bytes

    def read(self, name: str, whose: str, timeout_s: float = START_S) -> bytes:
        """The note `name` of `whose`.

        Raises DeadlineError when there is none in time, TroubleElsewhere when somebody has said what keeps it from coming,
        ProtocolError when the note is not of this job.
        """
        note, is_ours = self.peek(name, whose, timeout_s)
        if not is_ours:
            raise ProtocolError(f"what {whose} has written into the store is not signed with this job's key: is it on every host?")
        return note

    def peek(self, name: str, whose: str, timeout_s: float = START_S) -> tuple[bytes, bool]:
        """The same, and whether it is signed with this job's key: of one that is not, nothing may be believed."""
        key, until_s, pause_s = f"{self._prefix}/{name}", monotonic() + timeout_s, 0.01
        try:
            while not self._is_there(key):
                self._check_trouble()
                if monotonic() >= until_s:
                    who = f"rank {self._launch.rank} waited {timeout_s:g} s for {whose}"
                    raise DeadlineError(f"{who} to {self._awaited}, and it did not")
                # asked again and again: a wait of torch's that ends without the note prints a warning
                sleep(min(pause_s, max(0.0, until_s - monotonic())))
                pause_s = min(2.0 * pause_s, LOOK_S)
            signed = self._ask(lambda: self._store.get(key))
        except PeerLostError as error:
            raise PeerLostError(f"{error}, while it waited for {whose}") from error
        note = signed[_SIGNATURE_BYTES:]
        is_ours = len(signed) <= MOST_NOTE_BYTES and hmac.compare_digest(signed[:_SIGNATURE_BYTES], self._sign(name, note))
        return note[:MOST_NOTE_BYTES], is_ours

    def count(self, name: str) -> int:
        """How often this was asked before."""
        return int(self._ask(lambda: self._store.add(f"{self._prefix}/{name}", 1))) - 1

    # --- trouble ------------------------------------------------------------------------------------------

    def tell_trouble(self, sentence: str) -> None:
        """Tell the others what keeps this process from the run, unless somebody has; whoever keeps the store stays until all have heard."""
        key = f"{self._prefix}/{TROUBLE}"
        with suppress(DistError, PeerLostError):
            if self._is_there(key):
                self.count(f"{TROUBLE}/heard")
            else:
                self._put(key, msgspec.json.encode(Trouble(self._launch.rank, socket.gethostname(), sentence)))
            until_s = monotonic() + LINGER_S
            while self._keeps_store and monotonic() < until_s and self._store.add(f"{key}/heard", 0) < self._launch.world_size - 1:
                sleep(0.05)

    def _is_there(self, key: str) -> bool:
        return bool(self._ask(lambda: self._store.check([key])))

    def _check_trouble(self) -> None:
        key = f"{self._prefix}/{TROUBLE}"
        if not self._is_there(key):
            return
        try:
            trouble = msgspec.json.decode(self._ask(lambda: self._store.get(key))[:MOST_NOTE_BYTES], type=Trouble)
        except msgspec.MsgspecError as error:
            raise ProtocolError("somebody has written into the store what no process of a job writes") from error
        raise TroubleElsewhere(str(trouble))

    def _sign(self, name: str, note: bytes) -> bytes:
        return hmac.digest(self._secret, b"paceline note\0" + f"{self._prefix}/{name}\0".encode() + note, "sha256")


def answered(act: Callable[[], T], timeout_s: float) -> T:
    """What `act` returns or raises, from a thread of its own: torch waits for ever for a store that takes a call and says nothing.

    Raises TimeoutError.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(act())
        except Exception as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="paceline store", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"what listens there has not answered within {timeout_s:g} s")
    return results[0]


def understood(note: bytes, kind: type[T], rank: int) -> T:
    """What rank `rank` has written down. Raises ProtocolError when this version does not read it so."""
    try:
        return msgspec.json.decode(note, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"rank {rank} writes as another version of Paceline does: install the same one on every host") from error


def _open_store(launch: Launch, open_s: float) -> TCPStore:
    host, port = launch.address
    timeout = timedelta(seconds=open_s)
    try:
        if launch.has_store or launch.rank:
            reach = partial(TCPStore, host, port, None, False, timeout, wait_for_workers=False)
            return answered(reach, open_s + ANSWER_S)
        return serve_store(host, port, timeout)[0]
    except (RuntimeError, OSError) as error:
        what = "open" if launch.rank == 0 and not launch.has_store else "reach"
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else first_line(error)
        raise ConfigError(f"rank {launch.rank} cannot {what} the store at {host}:{port} (MASTER_ADDR and MASTER_PORT): {reason}") from error
