"""The one thing beside a policy that remembers: which parts of a batch were in force before the last ones, and how far to go next.

`logic.shares` has the rule; this keeps its state between readings of the signals.
"""

from __future__ import annotations

from paceline.logic.shares import MOST_STEP, next_parts
from paceline.logic.signals import Signals


class Balance:
    """Call `parts` with every reading; a worker that was not measured yet holds everything back."""

    def __init__(self) -> None:
        self._step = MOST_STEP
        self._before: dict[int, float] | None = None

    def parts(self, signals: Signals) -> tuple[tuple[int, float], ...]:
        """The new part of every worker, empty when nothing is to move."""
        workers = signals.workers
        if not workers or not all(worker.compute_s > 0.0 and worker.step_samples > 0.0 for worker in workers):
            return ()
        now = {worker.id: worker.part for worker in workers}
        seconds_per_sample = {worker.id: worker.compute_s / worker.step_samples for worker in workers}
        made, self._step = next_parts(seconds_per_sample, now, self._step, self._before)
        if made == now:
            return ()
        self._before = now
        return tuple(made.items())
