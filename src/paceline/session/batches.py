"""An epoch's batch list: which samples each entry has, as it travels from the worker that drew it to the others.

In memory: five int64 (entries, samples, whether an entry is one bare index, who drew it, from how many samples), the
entries' borders, the samples.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ProtocolError, UsageError
from paceline.roles.talk import Leased

HEAD = 5
UNSIZED = -1
"""The length of a dataset that has none."""


class BatchList(NamedTuple):
    """`borders[i]` to `borders[i + 1]` of `samples` are entry i; `bare`: the dataset is indexed by one number.

    Worker `drawer` drew it from a dataset of `dataset_size` samples.
    """

    borders: NDArray[np.int64]
    samples: NDArray[np.int64]
    bare: bool
    drawer: int = 0
    dataset_size: int = UNSIZED

    def indices(self, leased: Leased) -> list[int] | int:
        """What the dataset is asked for."""
        start, stop = self._range(leased)
        return int(self.samples[start]) if self.bare else self.samples[start:stop].tolist()

    def size(self, leased: Leased) -> int:
        """How many samples the entry has."""
        start, stop = self._range(leased)
        return stop - start

    def _range(self, leased: Leased) -> tuple[int, int]:
        if leased.cut is not None:
            return leased.cut
        return int(self.borders[leased.position]), int(self.borders[leased.position + 1])

    def check_dataset(self, worker: int, dataset_size: int) -> None:
        """Raise UsageError when the indices cannot mean the same samples to `worker`, whose dataset has `dataset_size`."""
        if UNSIZED not in (dataset_size, self.dataset_size) and dataset_size != self.dataset_size:
            theirs = f"worker {self.drawer}, which drew the epoch's order, one of {self.dataset_size}"
            raise UsageError(
                f"worker {worker} prepared a dataset of {dataset_size} samples, {theirs}; all workers must prepare the same dataset"
            )

    def pack(self) -> bytes:
        """The list as bytes that `unpack` reads."""
        head = np.array([len(self.borders) - 1, len(self.samples), self.bare, self.drawer, self.dataset_size], np.int64)
        return np.concatenate([head, self.borders, self.samples]).tobytes()


def batch_list(batches: Sequence[Sequence[int]], *, bare: bool = False) -> BatchList:
    """The list of these batches. Raises UsageError when an index is not a whole number."""
    samples = array("q")
    for batch in batches:
        try:
            samples.extend(batch)
        except TypeError:
            wrong = next(index for index in batch if not hasattr(index, "__index__"))
            raise UsageError(
                f"the loader's sampler gives {wrong!r}, which is not a whole number; only integer indices can be leased"
            ) from None
    borders = np.fromiter(accumulate(map(len, batches), initial=0), np.int64, len(batches) + 1)
    return BatchList(borders, np.frombuffer(samples, np.int64), bare)


def unpack(data: bytes) -> BatchList:
    """What `BatchList.pack` wrote. Raises ProtocolError for anything else."""
    words = np.frombuffer(data, np.int64) if len(data) % 8 == 0 else np.empty(0, np.int64)
    if len(words) < HEAD or not 0 <= words[0] < len(words) or len(words) != HEAD + words[0] + 1 + words[1]:
        raise ProtocolError(f"a batch list of {len(data)} bytes does not have the length that it names")
    borders = words[HEAD : HEAD + words[0] + 1]
    samples = words[HEAD + words[0] + 1 :]
    if borders[0] != 0 or borders[-1] != len(samples) or (np.diff(borders) < 0).any():
        raise ProtocolError("a batch list has borders that are out of order")
    return BatchList(borders, samples, bool(words[2]), int(words[3]), int(words[4]))
