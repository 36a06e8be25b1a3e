"""Batch shares by speed, damped: who computes twice as fast gets twice the samples, and all steps take as long.

The one thing here that remembers: which way each share went last. A share that turns round is chasing noise, and then every
later change is half as large.
"""

from __future__ import annotations

from paceline.logic.signals import Signals

GAIN, LEAST_GAIN = 0.7, 0.05
"""Of the way to the shares that the speeds ask for, at first and at least."""
DEADBAND = 0.05
"""A part that is off by less than this part of itself is left."""
LEAST_PART = 0.05
"""Of an even part: nobody gets less, or it could not be measured any more."""


def wanted_parts(signals: Signals) -> dict[int, float]:
    """By worker, its samples a second over those of all; empty while a speed is not known."""
    speeds = {worker.id: worker.step_samples / worker.compute_s for worker in signals.workers if worker.compute_s > 0.0}
    if len(speeds) < len(signals.workers) or not all(speeds.values()):
        return {}
    least = LEAST_PART / len(speeds) * sum(speeds.values())
    floored = {number: max(speed, least) for number, speed in speeds.items()}
    total = sum(floored.values())
    return {number: speed / total for number, speed in floored.items()}


class Balance:
    """Call `parts` once per window of measurements."""

    def __init__(self) -> None:
        self.gain = GAIN
        self._went: dict[int, bool] = {}

    def parts(self, signals: Signals) -> tuple[tuple[int, float], ...]:
        """The new part of every worker, empty when all are within the deadband."""
        wanted = wanted_parts(signals)
        off = {
            worker.id: wanted[worker.id] - worker.share
            for worker in signals.workers
            if wanted and abs(wanted[worker.id] - worker.share) > DEADBAND * worker.share
        }
        if not off:
            return ()
        grew = {number: change > 0.0 for number, change in off.items()}
        if any(self._went.get(number, up) is not up for number, up in grew.items()):
            self.gain = max(LEAST_GAIN, self.gain / 2.0)
        self._went |= grew
        made = {worker.id: worker.share + self.gain * (wanted[worker.id] - worker.share) for worker in signals.workers}
        total = sum(made.values())
        return tuple((number, part / total) for number, part in made.items())
