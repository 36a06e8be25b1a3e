"""A schedule: paces by shares of the work, obeyed and not judged."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.hybrid import Stage
from paceline.logic.policies.policy import Decision, Move
from paceline.logic.safety import guarded_share
from paceline.logic.sentence import Sentence
from paceline.logic.signals import Signals
from paceline.pace import Late


class Schedule:
    """`stages` in the order of their shares, the first at 0.

    A stage that keeps stale gradients begins later when moves were taken back: else it would be tried again at once.
    """

    judges = False

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)

    def decide(self, signals: Signals, history: Sequence[Move]) -> Decision:
        """The stage of the share that is done."""
        sentence = Sentence()
        if signals.share is None:
            why = f"{sentence.pace(signals.pace)} stays: the length of the run is not known, so no share of it"
            return Decision(None, why, sentence.inputs)
        done = f"{sentence.percent('share', signals.share)} of the work is done"
        begun = [stage for stage in self.stages if self._begin(stage, history) <= signals.share]
        stage = begun[-1] if begun else self.stages[0]
        if stage.pace.name != signals.pace:
            why = f"{done}, {sentence.pace(stage.pace.name)} begins at {sentence.percent('begin', self._begin(stage, history))}"
            return Decision(stage.pace, why, sentence.inputs)
        waiting = [other for other in self.stages if self._begin(other, history) > signals.share]
        stays = f"{done}, {sentence.pace(signals.pace)} stays"
        if not waiting:
            return Decision(None, f"{stays} to the end", sentence.inputs)
        until = sentence.percent("begin", self._begin(waiting[0], history))
        return Decision(None, f"{stays} until {until}", sentence.inputs)

    def _begin(self, stage: Stage, history: Sequence[Move]) -> float:
        return max(stage.share, guarded_share(0.0, history)) if stage.pace.late is Late.KEEP else stage.share
