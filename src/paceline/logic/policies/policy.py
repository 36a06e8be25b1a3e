"""The seam of a policy: what it is given, what it answers, and what became of earlier answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from paceline.logic.signals import Signals
from paceline.pace import Pace


class Move(msgspec.Struct, frozen=True):
    """A change of pace that was made: when, on the sample clock, from what to what, and why.

    `loss` is that at the change, `kind` how it came about: `policy`, or `restore` when a move was taken back.
    `predicted` is the rate in samples a second that the policy expected, None when it predicted none.
    """

    version: int
    samples: int
    share: float | None
    before: str
    after: str
    why: str
    loss: float | None = None
    kind: str = "policy"
    predicted: float | None = None


class Candidate(msgspec.Struct, frozen=True):
    """A pace that was weighed: predicted samples a second, times what a sample is worth against one in sync."""

    pace: str
    samples_per_s: float
    efficiency: float
    goodput: float
    staleness: float = 0.0


class Decision(msgspec.Struct, frozen=True):
    """What a policy answers: the next pace, None to stay, and a sentence that says why.

    `inputs` holds every number of the sentence by name, rounded as it is said there. `leads` are bounds of
    single workers as (worker, lead), `shares` the parts of a cut batch as (worker, part), both only what is to change.
    """

    pace: Pace | None
    why: str
    inputs: dict[str, float] = {}
    candidates: tuple[Candidate, ...] = ()
    leads: tuple[tuple[int, int], ...] = ()
    shares: tuple[tuple[int, float], ...] = ()
    predicted: float | None = None


class Policy(Protocol):
    """A pure function of signals and history. `judges`: dwell, guard and hysteresis bind what it says."""

    judges: bool

    def decide(self, signals: Signals, history: Sequence[Move]) -> Decision:
        """The next pace and the reason."""
        ...
