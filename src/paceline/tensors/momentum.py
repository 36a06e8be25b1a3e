"""What a change of pace may do to an optimizer's momentum: set it to zero, or bring its coefficient back over some updates."""

from __future__ import annotations

from paceline.tensors.optimizer import Settings

BUFFERS = frozenset({"momentum_buffer", "exp_avg"})
"""State that is a momentum, by torch's names, which others use too."""

LEAST_FACTOR = 0.25
RAMP_UPDATES = 500
"""When nobody says how long a ramp is. Sync-Switch's was about 7 % of its asynchronous updates (Li et al. 2021)."""


class Ramp:
    """The factor of the momentum's coefficient: a quarter at first, 1 after `num_updates`, in even steps."""

    def __init__(self, num_updates: int = 0) -> None:
        self._num_updates = self._left = num_updates

    def next_factor(self) -> float:
        """That of the next update.

        >>> ramp = Ramp(2)
        >>> [ramp.next_factor() for _ in range(4)]
        [0.25, 0.625, 1.0, 1.0]
        """
        if not self._left:
            return 1.0
        factor = 1.0 - (1.0 - LEAST_FACTOR) * self._left / self._num_updates
        self._left -= 1
        return factor


def scaled_momentum(group: Settings, factor: float) -> Settings:
    """The settings of a group that make its momentum `factor` times as strong: SGD's coefficient, the first beta of Adam's kind."""
    scaled: Settings = {}
    if isinstance(group.get("momentum"), float):
        scaled["momentum"] = group["momentum"] * factor
    betas = group.get("betas")
    if isinstance(betas, tuple) and len(betas) > 1 and isinstance(betas[0], float):
        scaled["betas"] = (betas[0] * factor, *betas[1:])
    return scaled
