"""Sync for a share of the work, then async (Sync-Switch, Li et al. 2021): early steps need what stale gradients spoil."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.logic.policies.policy import Decision, Move
from paceline.logic.safety import guarded_share
from paceline.logic.sentence import Sentence
from paceline.logic.signals import Signals
from paceline.pace import parse_pace

AFTER = parse_pace("async")


class SyncSwitch:
    """Async from `sync_share` of the work on, never while the learning rate warms up."""

    judges = True

    def __init__(self, sync_share: float) -> None:
        self.sync_share = sync_share

    def decide(self, signals: Signals, history: Sequence[Move]) -> Decision:
        """Async once its share has come."""
        sentence = Sentence()
        stays = f"{sentence.pace(signals.pace)} stays"
        if signals.share is None:
            return Decision(None, f"{stays}: the length of the run is not known, so no share of it", sentence.inputs)
        needed = guarded_share(self.sync_share, history)
        done = f"{sentence.percent('share', signals.share)} of the work is done"
        if signals.pace == AFTER.name:
            return Decision(None, f"{done}, {stays} to the end", sentence.inputs)
        begin = sentence.percent("sync_share", needed)
        if signals.share < needed or needed >= 1.0:
            return Decision(None, f"{done}, {stays} until {begin}", sentence.inputs)
        if signals.warming_up:
            return Decision(None, f"{done}, {stays} beyond {begin} while the learning rate warms up", sentence.inputs)
        return Decision(AFTER, f"{done}, {AFTER} begins at {begin}", sentence.inputs)
