"""DSSP (Zhao et al. 2019): each worker's own lead between two bounds, so that who must wait does it where it waits least.

At the bound a worker waits until the slowest has pushed. From both one's last push and interval, those moments are guessed
some pushes ahead; the lead allowed is the one after which the worker's push falls nearest to one of the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.logic.policies.goodput import unmeasured
from paceline.logic.policies.policy import Decision, Move
from paceline.logic.sentence import Sentence
from paceline.logic.signals import Signals, WorkerSignals

MOST_EXTRA = 64
"""Pushes looked ahead; the guess is worth nothing sooner than that."""


class Landing(NamedTuple):
    """After `extra` pushes more than the lower bound allows, a worker's push is `wait_s` from one of the slowest."""

    extra: int
    wait_s: float


def interval_s(worker: WorkerSignals) -> float:
    """From push to push, when nothing makes it wait."""
    return worker.compute_s + worker.exchange_s


def landing(worker: WorkerSignals, slowest: WorkerSignals, low: int, most_extra: int) -> Landing:
    """Where `worker` would wait least for `slowest`, with a lead of `low` and up to `most_extra` more; the nearest of equals.

    A worker is held once its lead is beyond its bound. Steps of 1 s and 3 s, begun together: at a bound of 2 the fast one is
    held just as the slow one pushes.

    >>> fast, slow = (WorkerSignals(0, 1.0, 0, 0, 8, 0.5, 0, 9), WorkerSignals(1, 3.0, 0, 0, 8, 0.5, 0, 9))
    >>> landing(fast, slow, 1, 4)
    Landing(extra=1, wait_s=0.0)
    """
    own_s, their_s = interval_s(worker), interval_s(slowest)
    next_s, their_next_s = max(0.0, own_s - worker.since_s), max(0.0, their_s - slowest.since_s)
    best = Landing(0, float("inf"))
    for extra in range(min(most_extra, MOST_EXTRA) + 1):
        pushes = max(0, low + extra + 1 - worker.lead)
        push_s = next_s + (pushes - 1) * own_s if pushes else 0.0
        turns = max(0, round((push_s - their_next_s) / their_s)) if their_s > 0.0 else 0
        away_s = abs(their_next_s + turns * their_s - push_s)
        if away_s < best.wait_s - 1e-9 * their_s:
            best = Landing(extra, away_s)
    return best


class Dssp:
    """Leads between `low` and `high`; the slowest keeps the lower bound, it waits for nobody."""

    judges = False

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def decide(self, signals: Signals, history: Sequence[Move]) -> Decision:  # noqa: ARG002 - a lead is judged by nothing
        """The leads that are to change; the pace stays."""
        if (waiting := unmeasured(signals)) is not None:
            return waiting
        slowest = max(signals.workers, key=interval_s)
        landings = {
            worker.id: Landing(0, 0.0) if worker is slowest else landing(worker, slowest, self.low, self.high - self.low)
            for worker in signals.workers
        }
        leads = tuple(
            (worker.id, self.low + landings[worker.id].extra)
            for worker in signals.workers
            if (self.low if worker.max_lead is None else worker.max_lead) != self.low + landings[worker.id].extra
        )
        sentence = Sentence()
        if not leads:
            return Decision(None, f"{sentence.pace(signals.pace)} stays, and every worker's lead too", sentence.inputs)
        who, lead = max(leads, key=lambda one: one[1])
        ahead = f"worker {sentence.number('worker', who)} may be {sentence.number('lead', lead)} ahead"
        apart = f"its push then falls within {sentence.number('wait_s', landings[who].wait_s)} s of one of"
        slow = f"the slowest, worker {sentence.number('slowest', slowest.id)}"
        return Decision(None, f"{ahead}: {apart} {slow}", sentence.inputs, leads=leads)
