"""AdaSync: a quorum that grows as the loss falls (Dutta, Wang, Joshi 2020), K = K0 sqrt(F0/F) with K0 outside the root.

Few gradients an update while the loss is large and speed counts, more when noise is what is left. The quorum is that of
`ksync`, whose updates hold nothing stale, and never shrinks: a loss that rises is noise, or a change that waits for its dwell.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite, sqrt

from paceline.logic.policies.policy import Decision, Move
from paceline.logic.sentence import Sentence
from paceline.logic.signals import Signals
from paceline.pace import parse_pace


def quorum_of(pace: str) -> int:
    """The K of `ksync:K`, 0 for any other pace.

    >>> quorum_of("ksync:3"), quorum_of("sync")
    (3, 0)
    """
    return parse_pace(pace).quorum.value if pace.startswith("ksync:") else 0


class AdaSync:
    """`first` is the quorum to begin with, 0 for half of the workers."""

    judges = True

    def __init__(self, first: int) -> None:
        self.first = first

    def decide(self, signals: Signals, history: Sequence[Move]) -> Decision:
        """The quorum for the loss now, at least the largest there was."""
        sentence = Sentence()
        num_workers = max(1, min(signals.num_workers, signals.num_at_start))
        before = max([quorum_of(signals.pace), *(quorum_of(move.after) for move in history if move.kind != "restore")])
        first = min(num_workers, self.first or ceil(num_workers / 2))
        loss, begun = signals.loss, signals.loss_first
        if loss is None or begun is None or not isfinite(loss) or min(loss, begun) <= 0.0:
            grown, because = first, f"{sentence.number('first', first)} to begin with, the loss says nothing yet"
        else:
            # a root that should be whole must not round up for its last bit
            grown = ceil(min(float(num_workers), first * sqrt(begun / loss)) - 1e-9)
            fallen = f"{sentence.number('loss_first', begun)} over {sentence.number('loss', loss)}"
            because = f"{sentence.number('first', first)} times the root of the loss, {fallen}, asks for {sentence.number('grown', grown)}"
        wanted = min(num_workers, max(grown, before))
        if wanted > grown:
            because += f", and a quorum of {sentence.number('before', before)} never shrinks"
        if wanted == quorum_of(signals.pace):
            return Decision(None, f"{sentence.pace(signals.pace)} stays: {because}", sentence.inputs)
        pace = parse_pace(f"ksync:{wanted}")
        why = f"{sentence.pace(pace.name)} of {sentence.number('workers', num_workers)} workers: {because}"
        return Decision(pace, why, sentence.inputs)
