"""A schedule: paces by shares of the work, obeyed and not judged."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.hybrid import Stage
from paceline.logic.policies.policy import Decision, Move
from paceline.logic.sentence import Sentence
from paceline.logic.signals import Signals


class Schedule:
    """`stages` in the order of their shares, the first at 0."""

    judges = False

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)

    def decide(self, signals: Signals, history: Sequence[Move]) -> Decision:  # noqa: ARG002 - a stage follows the share alone
        """The stage of the share that is done."""
        sentence = Sentence()
        if signals.share is None:
            why = f"{sentence.pace(signals.pace)} stays: the length of the run is not known, so no share of it"
            return Decision(None, why, sentence.inputs)
        done = f"{sentence.percent('share', signals.share)} of the work is done"
        stage = [stage for stage in self.stages if stage.share <= signals.share][-1]
        if stage.pace.name != signals.pace:
            why = f"{done}, {sentence.pace(stage.pace.name)} begins at {sentence.percent('begin', stage.share)}"
            return Decision(stage.pace, why, sentence.inputs)
        waiting = [other for other in self.stages if other.share > signals.share]
        stays = f"{done}, {sentence.pace(signals.pace)} stays"
        if not waiting:
            return Decision(None, f"{stays} to the end", sentence.inputs)
        return Decision(None, f"{stays} until {sentence.percent('begin', waiting[0].share)}", sentence.inputs)
