"""The model's buffers as the run has them: the mean of the workers' own, weighted by samples; integers take the maximum.

A worker counts with what it sent last, until it is gone.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from paceline.logic.partition import Layout, parameter_arena_bytes
from paceline.tensors.memory import typed


class MeanBuffers:
    """The mean-buffers segment of the parameter arena `memory`, and the contributions behind it."""

    def __init__(self, layout: Layout, memory: Tensor) -> None:
        start, _ = parameter_arena_bytes(layout)
        self.size_bytes = layout.buffer_bytes
        self._segment = memory[start : start + self.size_bytes]
        self._layout = layout
        self._means = self._views(self._segment)
        self._contributions: dict[tuple[int, int], tuple[int, Tensor, list[Tensor]]] = {}
        self._kept = torch.empty(0, dtype=torch.uint8)

    @property
    def values(self) -> list[Tensor]:
        """The means, flat, in the order of the layout."""
        return self._means

    def keep_only(self, workers: Collection[int]) -> None:
        """Of these workers alone what they sent counts with the next contribution."""
        for worker, incarnation in list(self._contributions):
            if worker not in workers:
                self.drop(worker, incarnation)

    def take(self, worker: int, incarnation: int, contribution: Tensor, num_samples: int) -> None:
        """Copy a worker's buffers (the segment's bytes) and compute the means again."""
        known = self._contributions.get((worker, incarnation))
        memory = torch.empty_like(contribution) if known is None else known[1]
        memory.copy_(contribution)
        self._contributions[worker, incarnation] = (num_samples, memory, self._views(memory) if known is None else known[2])
        total = sum(samples for samples, _, _ in self._contributions.values())
        for index, mean in enumerate(self._means):
            weighted = [(samples / total, views[index]) for samples, _, views in self._contributions.values()]
            mean.copy_(_mean(weighted) if mean.is_floating_point() else _maximum(weighted))

    def drop(self, worker: int, incarnation: int) -> None:
        """A worker is gone; the means stay until the next contribution."""
        self._contributions.pop((worker, incarnation), None)

    def keep(self) -> None:
        """Keep the means as they are, in place of those kept before."""
        if not self._kept.numel():
            self._kept = torch.empty_like(self._segment)
        self._kept.copy_(self._segment)

    def restore(self) -> None:
        """Put back the means that were kept and forget what the workers have sent."""
        self._segment.copy_(self._kept)
        self._contributions.clear()

    def replace(self, buffers: dict[int, Tensor]) -> None:
        """Take loaded buffers for the means and forget what the workers have sent."""
        for index, values in buffers.items():
            self._means[index].copy_(values.reshape(-1))
        if buffers:
            self._contributions.clear()

    def copy_to(self, segment: Tensor) -> None:
        """Copy the means to a worker."""
        segment.copy_(self._segment)

    def _views(self, memory: Tensor) -> list[Tensor]:
        return [typed(memory, slot.start, slot.stop, slot.spec.dtype) for slot in self._layout.buffers]


def _mean(weighted: list[tuple[float, Tensor]]) -> Tensor:
    """In float64, so that equal values have that value as their mean."""
    total = torch.zeros(weighted[0][1].shape, dtype=torch.float64)
    for weight, values in weighted:
        total.add_(values.double(), alpha=weight)
    return total


def _maximum(weighted: list[tuple[float, Tensor]]) -> Tensor:
    highest = weighted[0][1]
    for _, values in weighted[1:]:
        highest = torch.maximum(highest, values)
    return highest
