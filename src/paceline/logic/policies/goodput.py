"""Goodput: the pace with the most samples a second, times what a sample is worth there; what `hybrid` means alone.

As Pollux's goodput (Qiao et al. 2021), for paces in place of batch sizes. Nothing is tried out: every candidate is predicted
from what was measured under the pace in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from paceline.logic.policies.policy import Candidate, Decision, Move
from paceline.logic.policies.rates import Crew
from paceline.logic.policies.worth import Scale
from paceline.logic.safety import guarded_share
from paceline.logic.sentence import Sentence, written
from paceline.logic.signals import Signals
from paceline.pace import Late, LrRule, Pace, parse_pace

BETTER = 1.05
"""Times the goodput in force that a pace must reach: less is within the error of a prediction."""
LEAST_STEPS = 8
"""Steps of every worker before anything is predicted."""
LEAST_SCALE, MOST_SCALE = 0.5, 1.25
"""Bounds on measured over predicted rate of the pace in force, which corrects all predictions."""


def candidates_for(num_workers: int, num_at_start: int) -> list[Pace]:
    """The paces that are weighed, nearest to sync first; none needs more different workers than the run began with.

    >>> [pace.name for pace in candidates_for(4, 4)]
    ['sync', 'backup:1', 'ksync:2', 'kasync:2', 'ssp:3', 'async']
    """
    names = ["sync"]
    sure = min(num_workers, num_at_start)
    if sure > 2:
        names.append("backup:1")
    if sure > 3:
        half = ceil(sure / 2)
        names += [f"ksync:{half}", f"kasync:{half}"]
    if num_workers > 1:
        names += ["ssp:3", "async"]
    return [parse_pace(name) for name in names]


def unmeasured(signals: Signals) -> Decision | None:
    """The answer while some worker has taken too few steps to be predicted."""
    fewest = min(signals.workers, key=lambda worker: len(worker.steps_s), default=None)
    if fewest is not None and len(fewest.steps_s) >= LEAST_STEPS:
        return None
    sentence = Sentence()
    stays = f"{sentence.pace(signals.pace)} stays"
    if fewest is None:
        return Decision(None, f"{stays}: there is no worker", sentence.inputs)
    steps = f"worker {sentence.number('worker', fewest.id)} has {sentence.number('steps', len(fewest.steps_s))} steps measured"
    return Decision(None, f"{stays}: {steps}, {sentence.number('least_steps', LEAST_STEPS)} are needed", sentence.inputs)


class Goodput:
    """`sync_share` is the part of the work before which no pace that keeps stale gradients is chosen."""

    judges = True

    def __init__(self, sync_share: float, lr_rule: LrRule | None = None) -> None:
        self.sync_share = sync_share
        self.lr_rule: LrRule | None = lr_rule

    def decide(self, signals: Signals, history: Sequence[Move]) -> Decision:
        """The best candidate when it is BETTER than the pace in force."""
        if (waiting := unmeasured(signals)) is not None:
            return waiting
        paces = {pace.name: pace for pace in candidates_for(signals.num_workers, signals.num_at_start)}
        current = paces.setdefault(signals.pace, parse_pace(signals.pace))
        weighed = self.weigh(signals, list(paces.values()))
        now = next(one for one in weighed if one.pace == current.name)
        guard = self._guard(signals, history)
        open_to = [one for one in weighed if not guard or one is now or paces[one.pace].late is Late.DROP]
        best = max(open_to, key=lambda one: one.goodput)
        sentence = Sentence()
        if best.goodput > BETTER * now.goodput:
            why = self._moves(sentence, best, now, weighed[0])
            return Decision(paces[best.pace], why, sentence.inputs, weighed, predicted=best.samples_per_s)
        why = self._stays(sentence, now, [one for one in open_to if one is not now])
        if guard and max(one.goodput for one in weighed) > BETTER * now.goodput:
            why += f"; {self._guarded(sentence, guard, signals, history)}"
        return Decision(None, why, sentence.inputs, weighed)

    def weigh(self, signals: Signals, paces: Sequence[Pace]) -> tuple[Candidate, ...]:
        """Each pace's rate, worth and goodput; the first of `paces` is sync, and the one in force is among them."""
        crew = Crew(signals)
        predictions = [crew.predict(pace) for pace in paces]
        index = next(index for index, pace in enumerate(paces) if pace.name == signals.pace)
        now = paces[index], predictions[index]
        scale = 1.0
        if signals.samples_per_s > 0.0 and now[1].samples_per_s > 0.0:
            scale = min(MOST_SCALE, max(LEAST_SCALE, signals.samples_per_s / now[1].samples_per_s))
        judge = Scale(signals, predictions[0], self.lr_rule)
        weighed: list[Candidate] = []
        for pace, predicted in zip(paces, predictions, strict=True):
            rate, worth = scale * predicted.samples_per_s, judge.worth(pace, predicted, now=now)
            weighed.append(Candidate(pace.name, rate, worth, rate * worth, predicted.staleness))
        return tuple(weighed)

    def _guard(self, signals: Signals, history: Sequence[Move]) -> str:
        """What keeps stale paces out, empty when nothing does."""
        if signals.warming_up:
            return "warmup"
        if signals.share is None:
            return "plan"
        return "share" if signals.share < guarded_share(self.sync_share, history) else ""

    def _guarded(self, sentence: Sentence, guard: str, signals: Signals, history: Sequence[Move]) -> str:
        if guard == "warmup":
            return "nothing stale is chosen while the learning rate warms up"
        if guard == "plan" or signals.share is None:
            return "nothing stale is chosen while the length of the run is not known"
        needed = sentence.percent("sync_share", guarded_share(self.sync_share, history))
        return f"nothing stale is chosen before {needed} of the work, {sentence.percent('share', signals.share)} is done"

    def _moves(self, sentence: Sentence, best: Candidate, now: Candidate, sync: Candidate) -> str:
        rate = f"{sentence.pace(best.pace)} is predicted to train {sentence.number('samples_per_s', best.samples_per_s)} samples/s"
        if written(best.efficiency) == "1":
            rate += " at sync's worth"
        elif best.pace != sync.pace:
            rate += f" at {sentence.number('efficiency', best.efficiency)} of sync's worth"
        if now.goodput <= 0.0:
            return f"{rate}, {sentence.pace(now.pace)} would train nothing"
        times = sentence.number("times", best.goodput / now.goodput)
        return f"{rate}, {times} times {sentence.pace(now.pace)}'s {sentence.number('goodput_now', now.goodput)}"

    def _stays(self, sentence: Sentence, now: Candidate, others: Sequence[Candidate]) -> str:
        stays = f"{sentence.pace(now.pace)} stays at a goodput of {sentence.number('goodput_now', now.goodput)} samples/s"
        if not others:
            return f"{stays}: there is no other pace to choose"
        best = max(others, key=lambda one: one.goodput)
        reached = f"{sentence.pace(best.pace)} is predicted to reach {sentence.number('goodput_best', best.goodput)}"
        return f"{stays}: {reached}, a move needs {sentence.number('better', BETTER)} times as much"
