"""A user's own policy, in a process of its own: asked without waiting, given a second, killed and begun anew when that is over.

Whatever goes wrong is an answer that leaves the pace as it is; each kind of it is said once on the console.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from paceline.engine.exchange import Exchange
from paceline.engine.local.run_dir import LOGS
from paceline.errors import ConfigError, PeerLostError, WriteError
from paceline.hybrid import Hybrid
from paceline.messages import Address, Advice, Ask, Loaded, Message
from paceline.pace import Pace, check_pace, parse_pace
from paceline.roles.effects import Consult
from paceline.transport.connection import pair

CALL_S = 1.0
LOAD_S = 60.0
"""A policy may import much; nothing waits for it meanwhile."""
MOST_RESTARTS = 3
ROLE = "advisor"
_REAP_S = 5.0


class Answer(NamedTuple):
    """What came of the Consult `number`: the next pace, None to stay, and why, or the error that let it stay."""

    number: int
    pace: Pace | None
    why: str
    error: str = ""


class Advisor:
    """The process of the policy `hybrid`; `remarks` are sentences for the user that wait to be taken."""

    def __init__(self, port: Exchange, hybrid: Hybrid, run_dir: Path, num_workers: int) -> None:
        self._port, self._hybrid, self._num_workers = port, hybrid, num_workers
        self._log = run_dir / LOGS / "policy.log"
        self._asks: deque[Ask] = deque()
        self._who = Address(ROLE)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: list[subprocess.Popen[bytes]] = []
        self._is_loaded = False
        self._given_up = ""
        self._said: set[str] = set()
        self.remarks: list[str] = []
        self.deadline_s = math.inf

    def start(self, now_s: float) -> None:
        """Start the process, unless it runs; nothing is asked before its file is loaded. Raises WriteError."""
        if self._process is not None or self._given_up:
            return
        ours, theirs = pair()
        self._is_loaded, self.deadline_s = False, now_s + LOAD_S
        try:
            with theirs, self._log.open("ab") as log:
                told = [self._hybrid.file, self._hybrid.function, str(theirs.fileno()), str(os.getpid())]
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", f"{__name__}_main", *told],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                )
        except OSError as error:
            ours.close()
            raise WriteError(f"{self._log} could not be written: {error.strerror or error}") from error
        self._port.adopt(self._who, ours)

    # --- what is asked ------------------------------------------------------------------------------------

    def ask(self, consult: Consult, now_s: float) -> None:
        """Ask; the answer comes out of `heard` or `expire`, one for each question."""
        encode = msgspec.msgpack.encode
        self._asks.append(Ask(consult.number, encode(consult.signals), encode(consult.history)))
        self.start(now_s)
        if len(self._asks) == 1:
            self._ask_next(now_s)

    def _ask_next(self, now_s: float) -> None:
        """Hand over the oldest question, if somebody can hear it; with nobody left, it is answered at once."""
        if self._given_up:
            self.deadline_s = now_s if self._asks else math.inf
        elif self._is_loaded:
            self.deadline_s = now_s + CALL_S if self._asks else math.inf
            if self._asks:
                with suppress(PeerLostError):
                    self._port.send(self._who, self._asks[0])

    # --- what comes back ----------------------------------------------------------------------------------

    def heard(self, sender: Address, message: Message | None, now_s: float) -> Answer | None:
        """A message of the process, None at its end; what a former one still says counts for nothing."""
        if sender != self._who:
            return None
        match message:
            case Loaded(error=""):
                self._is_loaded = True
                self._ask_next(now_s)
            case Loaded(error=error):
                self._stop()
                return self._give_up(error, now_s)
            case Advice() as advice if self._asks and advice.number == self._asks[0].number:
                return self._answered(advice, now_s)
            case None:
                return self._failed("ended", "ended its process", now_s)
            case _:
                pass
        return None

    def expire(self, now_s: float) -> Answer | None:
        """`deadline_s` has passed."""
        if now_s < self.deadline_s:
            return None
        if self._given_up:
            return self._answer(Answer(self._asks[0].number, None, "", self._given_up), now_s)
        if self._is_loaded:
            return self._failed("late", f"took longer than {CALL_S:g} s to answer", now_s)
        return self._failed("late", f"was not loaded within {LOAD_S:g} s", now_s)

    def _answered(self, advice: Advice, now_s: float) -> Answer:
        fault, error, pace = advice.fault, advice.error, None
        if not fault and advice.pace:
            try:
                pace = parse_pace(advice.pace)
                check_pace(pace, self._num_workers)
            except ConfigError as wrong:
                fault, error, pace = "pace", f"chose a pace that cannot be: {wrong}", None
        if fault:
            error = self._say(fault, error)
        return self._answer(Answer(advice.number, pace, advice.why, error), now_s)

    def _answer(self, answer: Answer, now_s: float) -> Answer:
        self._asks.popleft()
        self._ask_next(now_s)
        return answer

    # --- what goes wrong ----------------------------------------------------------------------------------

    def _say(self, fault: str, error: str, then: str = "the pace stays as it is (said once, each time is in decisions.jsonl)") -> str:
        """The whole sentence of an error; the first of its kind goes to the user."""
        sentence = f"policy {self._hybrid.file}:{self._hybrid.function} {error}"
        if fault not in self._said:
            self._said.add(fault)
            self.remarks.append(f"{sentence}; {then}")
        return sentence

    def _failed(self, fault: str, error: str, now_s: float) -> Answer | None:
        """The process is of no use any more: begin another one, but not for ever."""
        self._stop()
        if len(self._ended) > MOST_RESTARTS:
            return self._give_up(f"{error}, and has been started {len(self._ended)} times", now_s)
        sentence = self._say(fault, error)
        number = self._asks.popleft().number if self._asks else None
        self.start(now_s)
        return None if number is None else Answer(number, None, "", sentence)

    def _give_up(self, error: str, now_s: float) -> Answer | None:
        """This question and all further ones are answered by `error`."""
        self._given_up = self._say("given up", error, "it is asked no more, the pace stays as it is")
        self.deadline_s = math.inf
        return self._answer(Answer(self._asks[0].number, None, "", self._given_up), now_s) if self._asks else None

    def _stop(self) -> None:
        """Kill the process; its exit status is taken at the end, so that nothing waits for it now. Its last words are nobody's."""
        self._who = Address(ROLE, self._who.id + 1)
        if self._process is not None:
            self._process.kill()
            self._ended.append(self._process)
            self._process = None

    def close(self) -> None:
        """Leave nothing behind."""
        self._stop()
        for process in self._ended:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_S)
