"""What a policy sees: the run's measurements, smoothed, as one frozen value that can be written down and read back.

`Gauges` make it from what the coordinator tells them; nothing here decides.
"""

from __future__ import annotations

import msgspec


class WorkerSignals(msgspec.Struct, frozen=True):
    """One live worker. Times are seconds a step, means over its last WINDOW_STEPS steps.

    `steps_s` are its latest compute times, oldest first. `gate_s` is waited at the gate until it may go on, `exchange_s` for the
    apply and the parameters after that. `step_samples` is the mean number of samples of a step, `part` that of a
    cut batch (1/N when even), `lead` its answered steps ahead of the slowest. `num_steps` are all that were measured.
    `since_s` is how long ago its last gradient came, `max_lead` the bound of its own that it was given last.
    """

    id: int
    compute_s: float
    gate_s: float
    exchange_s: float
    step_samples: float
    part: float
    lead: int
    num_steps: int
    steps_s: tuple[float, ...] = ()
    since_s: float = 0.0
    max_lead: int | None = None


class Signals(msgspec.Struct, frozen=True):
    """The state of the run at one moment, on the sample clock.

    `share` is the part of the run's planned samples that is folded, None while the plan is not known. `updates_left` is what
    is left of it in updates of the pace in force. `warming_up`: the learning rate has only grown so far, and lately.
    `straggler_ratio` is 1 - mean/max of the workers' step times, `exchange_ratio` exchange over compute, `samples_per_s`,
    `gradients_per_s` and `updates_per_s` rates since the last move or over the last WINDOW_ROUNDS rounds, if fewer; a round
    has as many gradients as there are workers.
    `loss_slope` is d(log loss) per 1,000 samples with its standard error. `noise_scale` is tr(S)/|G|^2 in samples
    (McCandlish et al. 2018), `noise_age` the updates since it could be measured; None: never. `relative_change` is
    |change|/|parameters| of an update, `busy_s` what the busiest of `num_shards` servers works on one. `lr_factor` is in force.
    """

    pace: str
    version: int
    samples: int
    share: float | None
    updates_left: float | None
    num_workers: int
    num_at_start: int
    workers: tuple[WorkerSignals, ...]
    warming_up: bool = False
    straggler_ratio: float = 0.0
    exchange_ratio: float = 0.0
    samples_per_s: float = 0.0
    gradients_per_s: float = 0.0
    updates_per_s: float = 0.0
    staleness_mean: float = 0.0
    staleness_p50: float = 0.0
    staleness_p95: float = 0.0
    staleness_max: float = 0.0
    loss: float | None = None
    loss_first: float | None = None
    loss_slope: float = 0.0
    loss_slope_error: float = 0.0
    noise_scale: float | None = None
    noise_age: int = 0
    relative_change: float | None = None
    busy_s: float = 0.0
    num_shards: int = 0
    lr_factor: float = 1.0
    scales_gradients: bool = False
    lost: int = 0
