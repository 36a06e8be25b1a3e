"""The script's random streams (torch, numpy, random): set for a worker, or lent for a moment and given back."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch

NUMPY_SEEDS = 2**32


def reseed(seed: int) -> None:
    """Begin all three streams anew."""
    torch.manual_seed(seed)
    np.random.seed(seed % NUMPY_SEEDS)
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """All three streams begin at `seed` inside, and go on afterwards as if nothing had been."""
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % NUMPY_SEEDS)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])
