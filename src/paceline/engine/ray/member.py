"""A process of a run as its broker knows it: which actor it has, how far it has come, how often it was started."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

from paceline.engine.local.output import Log
from paceline.engine.local.run_dir import LOGS
from paceline.errors import ExitCode
from paceline.messages import Address, Failed

SHORT_S = 30.0
MOST_SHORT_LIVES = 3
"""So many lives of less than SHORT_S each, one after the other, and a worker is not started again."""


class State(Enum):
    """How far a process is."""

    PLACING = "Ray looks for room"
    PLACED = "there is room"
    STARTING = "its process starts"
    RUNNING = "its process runs"
    OVER = "it does not come back"


class Member:
    """One process and its actor `berth`; `who` is None while a worker of those that may come has had no room yet.

    `life` counts the processes; `host`, `machine` and `endpoint` are where the present one is, `was_begun` once it was asked for.
    `failed` is what it has reported; `said_bye`: its script has ended well.
    """

    def __init__(self, who: Address | None, berth: Any) -> None:
        self.who, self.berth = who, berth
        self.state = State.PLACING
        self.life = 0
        self.host = self.machine = ""
        self.was_begun = self.said_bye = False
        self.failed: Failed | None = None
        self.endpoint: tuple[str, int] | None = None
        self.log: Log | None = None
        self._began_s = 0.0
        self._num_short = 0

    def __str__(self) -> str:
        return f"{self.who} on {self.host}" if self.host else f"{self.who}"

    @property
    def is_server(self) -> bool:
        """Whether it holds a shard."""
        return self.who is not None and self.who.role == "server"

    @property
    def has_process(self) -> bool:
        """Whether a process of it may be there."""
        return self.state in (State.STARTING, State.RUNNING)

    @property
    def has_ended_the_run(self) -> bool:
        """Whether it has reported what ends the run; a worker that has lost or not reached others is no cause, and comes again."""
        return self.failed is not None and (self.is_server or self.failed.code != ExitCode.PEER_LOST)

    def write(self, run_dir: Path, data: bytes, *, is_last: bool = False) -> list[str]:
        """Put what it has printed into its log; returns whole lines. Raises WriteError."""
        assert self.who is not None
        if self.log is None:
            self.log = Log(run_dir / LOGS / f"{self.who.role}-{self.who.id}.log")
        return self.log.add(data, is_last=is_last)

    def begin(self, now_s: float) -> None:
        """Its process is about to start."""
        self.state, self._began_s, self.failed, self.was_begun = State.STARTING, now_s, None, True

    def lose(self, now_s: float) -> bool:
        """Its process is gone and another one is to follow; False: it has been tried often enough."""
        is_short = now_s - self._began_s < SHORT_S
        self._num_short = self._num_short + 1 if is_short else 0
        self.life += 1
        self.was_begun = False
        self.state = State.PLACING if self._num_short < MOST_SHORT_LIVES else State.OVER
        return self.state is State.PLACING
