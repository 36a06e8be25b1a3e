"""A ladder against stragglers, the cheapest rung first: shares by speed, then not waiting, and async only late in the run.

A straggler that passes costs accuracy when the run goes async for it, and nothing when it is left out (Sync-Switch, Li et al.
2021). Shares are damped and follow slowly, so a straggler that has just come is left out at once; one that stays is left out
when shares cannot even it out.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.logic.meters import mean, wasted
from paceline.logic.policies.balance import Balance
from paceline.logic.policies.goodput import unmeasured
from paceline.logic.policies.policy import Decision, Move
from paceline.logic.safety import guarded_share
from paceline.logic.sentence import Sentence
from paceline.logic.signals import Signals
from paceline.pace import parse_pace

HIGH, LOW = 0.25, 0.1
"""Parts of the fast workers' time that sync would waste: from the one on there is a straggler, below the other there is none."""
STRAGGLES = 1.5
"""Times the median step of a worker that straggles."""


def halves(signals: Signals) -> tuple[list[float], list[float]]:
    """Each worker's mean step in the first half of what is measured, and in the second."""
    first = [mean(worker.steps_s[: len(worker.steps_s) // 2]) for worker in signals.workers]
    return first, [mean(worker.steps_s[len(worker.steps_s) // 2 :]) for worker in signals.workers]


def evened(signals: Signals) -> tuple[tuple[int, float], ...]:
    """Even parts, empty when they are so already: in async a small piece would be a whole step of an optimizer like Adam."""
    even = 1.0 / max(1, len(signals.workers))
    uneven = any(abs(worker.part - even) > 0.01 * even for worker in signals.workers)
    return tuple((worker.id, even) for worker in signals.workers) if uneven else ()


class Stragglers:
    """`sync_share` is the part of the work before which no pace that keeps stale gradients is chosen."""

    judges = True

    def __init__(self, sync_share: float) -> None:
        self.sync_share = sync_share
        self.balance = Balance()
        self._asked: dict[int, float] = {}

    def decide(self, signals: Signals, history: Sequence[Move]) -> Decision:
        """The rung for what was measured; new shares come with it."""
        if (waiting := unmeasured(signals)) is not None:
            return waiting
        sentence = Sentence()
        before, lately = halves(signals)
        shares = evened(signals) if signals.pace == "async" else self.balance.parts(signals)
        pace, why = self._rung(sentence, signals, history, (before, lately, bool(shares) and self._are_followed(signals)))
        if shares and signals.pace == "async":
            why = f"{why}; every worker gets an even part again, since nobody waits for a large one"
        elif shares:
            self._asked = dict(shares)
            slowest = min(shares, key=lambda one: one[1])
            part = f"worker {sentence.number('worker', slowest[0])} is to get {sentence.percent('part', slowest[1])} of the samples"
            why = f"{why}; by speed {part}"
        return Decision(None if pace is None else parse_pace(pace), why, sentence.inputs, shares=shares)

    def _are_followed(self, signals: Signals) -> bool:
        """Whether the shares in force are what was asked last: not every run cuts its batches."""
        return all(abs(self._asked.get(worker.id, worker.part) - worker.part) < 0.01 * worker.part for worker in signals.workers)

    def _rung(
        self, sentence: Sentence, signals: Signals, history: Sequence[Move], times: tuple[list[float], list[float], bool]
    ) -> tuple[str | None, str]:
        before, lately, evens_out = times
        name, waste = signals.pace, wasted(lately)
        lost = f"workers would wait {sentence.percent('wasted', waste)} of their time in sync"
        slow = min(self._slow(lately), signals.num_at_start - 1)
        if name == "async":
            return None, f"{name} stays to the end: {lost}"
        if name == "sync" and (waste < HIGH or not slow):
            return None, f"{name} stays: {lost}, {sentence.percent('high', HIGH)} would be a straggler's"
        if waste < LOW:
            return "sync", f"back to sync: {lost}, the straggler is gone"
        if waste < HIGH or not slow:
            return None, f"{sentence.pace(name)} stays: {lost}, below {sentence.percent('low', LOW)} the straggler would be gone"
        lasts = wasted(before) >= HIGH
        if name != "sync":
            return self._last_rung(sentence, signals, history, lost, lasts=lasts)
        if lasts and evens_out:
            return None, f"{name} stays: {lost}, and shares by speed are still evening that out"
        out = f"backup:{slow}"
        since = "that lasts and shares do not even it out" if lasts else "it has just begun"
        return out, f"{sentence.pace(out)} leaves out the slowest: {lost}, {since}"

    def _last_rung(
        self, sentence: Sentence, signals: Signals, history: Sequence[Move], lost: str, *, lasts: bool
    ) -> tuple[str | None, str]:
        """The straggler is left out. When it lasts, and the sync share is done, its work is used by going async."""
        stays = f"{sentence.pace(signals.pace)} stays: {lost}"
        needed = guarded_share(self.sync_share, history)
        if not lasts:
            return None, stays
        if signals.share is None or signals.warming_up:
            unknown = "the length of the run is not known" if signals.share is None else "the learning rate warms up"
            return None, f"{stays}, and nothing stale is chosen while {unknown}"
        done, begin = sentence.percent("share", signals.share), sentence.percent("sync_share", needed)
        if signals.share < needed or needed >= 1.0:
            return None, f"{stays}, and nothing stale is chosen before {begin} of the work, {done} is done"
        return (
            "async",
            f"async uses what the straggler computes: {lost}, that lasts, and {done} of the work is done, {begin} were to be in sync",
        )

    def _slow(self, lately: Sequence[float]) -> int:
        """How many straggle, at most half of the workers."""
        median = sorted(lately)[(len(lately) - 1) // 2]
        return min(len(lately) // 2, sum(time > STRAGGLES * median for time in lately))
