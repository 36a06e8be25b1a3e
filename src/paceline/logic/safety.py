"""Safety: how long a move is left alone, when it is taken back, how much of the work stays in sync after that.

Pure verdicts on signals and moves. A published good switch trebles the loss for a while and takes a fifth of what is left
to recover (Sync-Switch, Li et al. 2021), so no slope and no short rise is judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import msgspec

from paceline.logic.policies.policy import Move
from paceline.logic.sentence import Sentence
from paceline.logic.signals import Signals
from paceline.pace import Late, Pace

DWELL = 0.15
MOST_DWELL = 0.25
"""Parts of the work that remained at the move."""
DWELL_ROUNDS = 10
"""So many updates for each worker and update of staleness: a change must have gone through everyone's hands that often."""
LEAST_UPDATES = 50
"""The shortest dwell of a run whose end is not known."""
RUNAWAY, WORSE = 4.0, 1.5
"""Times the loss at the change: what goes back at once, and at the end of the dwell."""
LEAST_LOSS = 0.01
"""Part of the first loss below which times mean nothing: near zero every batch is a multiple of the last."""
LEAST_SYNC_SHARE = 0.05
"""What a doubling starts from at least."""


class Judgement(msgspec.Struct, frozen=True):
    """What is to become of a move: taken back, or left alone; `is_over` when it is judged no more."""

    goes_back: bool
    is_over: bool
    why: str = ""
    inputs: dict[str, float] = {}


class Leave(msgspec.Struct, frozen=True):
    """Whether a move may be made now, and why not."""

    ok: bool
    reason: str = ""
    inputs: dict[str, float] = {}


def looseness(pace: Pace, num_workers: int) -> tuple[bool, float, float]:
    """How far from sync: whether stale gradients are kept, the part of the workers not waited for, the lead allowed.

    >>> from paceline.pace import parse_pace
    >>> names = ["async", "sync", "ssp:3", "kasync:2", "backup:1"]
    >>> sorted(names, key=lambda name: looseness(parse_pace(name), 4))
    ['sync', 'backup:1', 'kasync:2', 'ssp:3', 'async']
    """
    missing = 1.0 - min(1.0, pace.quorum.of(num_workers) / max(1, num_workers))
    return pace.late is Late.KEEP, missing, float("inf") if pace.max_lead is None and pace.late is Late.KEEP else float(pace.max_lead or 0)


def is_less_sync(before: Pace, after: Pace, num_workers: int) -> bool:
    """Whether a move from `before` to `after` goes away from sync, and so may have to be taken back."""
    return looseness(after, num_workers) > looseness(before, num_workers)


def dwell_updates(signals: Signals) -> float:
    """How many updates a move is left alone, whatever the plan."""
    return DWELL_ROUNDS * max(1, signals.num_workers) * max(1.0, signals.staleness_mean)


def dwell_share(signals: Signals, move: Move) -> float | None:
    """The part of the run's work that passes after `move` before the next; None while the plan is not known.

    The larger of DWELL of what remained and `dwell_updates`, at most MOST_DWELL of what remained.
    """
    if signals.share is None or move.share is None:
        return None
    remaining = 1.0 - move.share
    least = dwell_updates(signals) * (1.0 - signals.share) / signals.updates_left if signals.updates_left else 0.0
    return min(max(DWELL * remaining, least), MOST_DWELL * remaining)


def dwell_is_over(signals: Signals, move: Move) -> bool:
    """Whether `move` has been left alone for long enough."""
    dwell = dwell_share(signals, move)
    if dwell is None or signals.share is None or move.share is None:
        return signals.version - move.version >= max(LEAST_UPDATES, dwell_updates(signals))
    return signals.share - move.share >= dwell


def may_move(signals: Signals, history: Sequence[Move]) -> Leave:
    """Whether a policy that judges may move now: once per dwell, whether it moved or was taken back last."""
    if not history or dwell_is_over(signals, history[-1]):
        return Leave(True)
    last, sentence = history[-1], Sentence()
    move = f"the move to {sentence.pace(last.after)}"
    dwell = dwell_share(signals, last)
    if dwell is None or signals.share is None or last.share is None:
        done, needed = signals.version - last.version, max(LEAST_UPDATES, dwell_updates(signals))
        why = f"{move} was {sentence.number('ago', done)} updates ago, its dwell is {sentence.number('dwell', needed)}"
    else:
        ago = sentence.percent("ago", signals.share - last.share)
        why = f"{move} was {ago} of the work ago, its dwell is {sentence.percent('dwell', dwell)}"
    return Leave(False, why, sentence.inputs)


def judge(signals: Signals, move: Move) -> Judgement:
    """Whether a move away from sync is taken back: RUNAWAY times its loss at any time, WORSE times at the dwell's end."""
    is_over = dwell_is_over(signals, move)
    if signals.loss is None:
        return Judgement(False, is_over)
    sentence = Sentence()
    back = f"back from {sentence.pace(move.after)} to {sentence.pace(move.before)}"
    if not isfinite(signals.loss):
        return Judgement(True, is_over, f"the loss is not finite: {back}", sentence.inputs)
    before = max(move.loss or 0.0, LEAST_LOSS * (signals.loss_first or 0.0))
    allowed = WORSE if is_over else RUNAWAY
    if move.loss is None or before <= 0.0 or signals.loss <= allowed * before:
        return Judgement(False, is_over)
    times = f"{sentence.number('times', signals.loss / before)} times the {sentence.number('loss_before', before)} at the change"
    when = "at the end of its dwell" if is_over else "within its dwell"
    limit = f"more than the {sentence.number('allowed', allowed)} allowed {when}"
    return Judgement(True, is_over, f"the loss is {sentence.number('loss', signals.loss)}, {times}, {limit}: {back}", sentence.inputs)


def guarded_share(sync_share: float, history: Sequence[Move]) -> float:
    """The part of the work before which nothing stale is chosen: doubled, 1 at most, for each move that was taken back.

    What is doubled is at least the share at which that move was made, else a late one would not be held off at all.

    >>> guarded_share(0.1, [])
    0.1
    """
    share, moved_at = sync_share, 0.0
    for move in history:
        if move.kind == "restore":
            share = min(1.0, 2.0 * max(share, moved_at, LEAST_SYNC_SHARE))
        else:
            moved_at = move.share or 0.0
    return share
