"""What a sample is worth under a pace, against one in sync: statistical efficiency, never above 1.

With loss L, gradient G and Hessian H, a step of rate e on a batch of b samples gains e|G|^2 - e^2 (G'HG + tr(HS)/b)/2, the
most at e = e_max/(1 + phi/b), phi the noise scale (McCandlish et al. 2018, section 2.2). Take the user's rate as the best one
for sync's batch B. A pace with b samples an update and f times that rate is at f r of its own best, r = (1 + phi/b)/(1 + phi/B);
its update gains (2 f r - (f r)^2)/r = 2f - f^2 r of sync's, a sample B/b = x times that: x (2f - f^2 r). Gains over sync, which
a rate that was too small for sync would bring, are not believed.
"""

from __future__ import annotations

from math import sqrt

from paceline.logic.policies.rates import Predicted
from paceline.logic.signals import Signals
from paceline.logic.weighting import lr_factor, lr_rule_of
from paceline.pace import LrRule, Pace

DRIFT_TOLERATED = 0.1
"""Of the parameters' length: a gradient read from so far away counts half. On scikit-learn's digits (MLP 64-64-10, momentum 0.9,
staleness 29, three seeds) runs whose drift peaked at 0.20 to 0.29 ended as well as sync did, those at 0.31 to 0.41 were hurt and
those above were lost; this is a third of where harm began."""


def step_efficiency(factor: float, batches: float, noise: float) -> float:
    """The formula above within 0 and 1: `factor` f, `batches` of the pace in one of sync x, `noise` r.

    A rate divided with the batch loses nothing, one that is not ruins a run whose batches are mostly noise (r near x).

    >>> step_efficiency(0.25, 4.0, 4.0), step_efficiency(1.0, 4.0, 4.0)
    (1.0, 0.0)
    """
    return min(1.0, max(0.0, batches * (2.0 * factor - factor * factor * noise)))


def noise_ratio(noise_scale: float | None, batch: float, sync_batch: float) -> float:
    """(1 + phi/b)/(1 + phi/B); an unknown or unmeasurable scale is taken as large, which trusts a small batch least.

    >>> noise_ratio(None, 8.0, 32.0), noise_ratio(0.0, 8.0, 32.0)
    (4.0, 1.0)
    """
    if noise_scale is None:
        return sync_batch / batch
    return (1.0 + noise_scale / batch) / (1.0 + noise_scale / sync_batch)


class Scale:
    """Judges paces against `sync`, which was predicted for the same workers. `lr_rule` is the run's."""

    def __init__(self, signals: Signals, sync: Predicted, lr_rule: LrRule | None) -> None:
        self.signals, self.sync = signals, sync
        self.lr_rule: LrRule | None = lr_rule

    def worth(self, pace: Pace, predicted: Predicted, *, now: tuple[Pace, Predicted]) -> float:
        """The worth of a sample under `pace`; `now` is the pace in force, under which an update's change was measured.

        The drift is how far, of their length, parameters move between a read and the apply.
        """
        if predicted.samples_per_update <= 0.0 or self.sync.samples_per_update <= 0.0:
            return 0.0
        factor, noise = self._step(pace, predicted)
        length = factor * sqrt(noise)
        factor_now, noise_now = self._step(*now)
        length_now = factor_now * sqrt(noise_now)
        change = self.signals.relative_change or 0.0
        drift = predicted.staleness * change * length / length_now if length_now > 0.0 else 0.0
        fresh = 1.0 / (1.0 + (drift / DRIFT_TOLERATED) ** 2)
        return fresh * step_efficiency(factor, self.sync.samples_per_update / predicted.samples_per_update, noise)

    def _step(self, pace: Pace, predicted: Predicted) -> tuple[float, float]:
        """The f and r of a pace. An optimizer that divides by its gradient's length does so by a small batch's noise too: f/sqrt(r)."""
        signals = self.signals
        rule = lr_rule_of(pace, self.lr_rule, scales_gradients=signals.scales_gradients)
        nominal = lr_factor(pace, rule, num_live=signals.num_workers, num_at_start=signals.num_at_start)
        batch = predicted.samples_per_update or self.sync.samples_per_update
        noise = noise_ratio(signals.noise_scale, batch, self.sync.samples_per_update)
        factor = nominal * predicted.factor
        return (factor if signals.scales_gradients else factor / sqrt(noise)), noise
