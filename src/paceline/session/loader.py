"""The user's DataLoader as the one that fetches a run's batches: all of its settings, over other samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from paceline.errors import UsageError
from paceline.session.run import say


class Strided(IterableDataset[Any]):
    """Every `num_workers`-th item of a dataset, from item `worker` on; in each of a loader's processes alike."""

    def __init__(self, dataset: Iterable[Any], worker: int, num_workers: int) -> None:
        self._dataset, self._worker, self._num_workers = dataset, worker, num_workers

    def __iter__(self) -> Iterator[Any]:
        for i, item in enumerate(self._dataset):
            if i % self._num_workers == self._worker:
                yield item


def check_loader(loader: DataLoader[Any]) -> None:
    """Raise UsageError for a loader whose batches cannot be leased."""
    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__:
        raise UsageError(
            f"{kind.__name__} iterates in a way of its own (__iter__), which cannot be leased from; prepare a plain DataLoader"
        )


def fetching(
    loader: DataLoader[Any], worker: int, *, sampler: Iterable[Any] | None = None, dataset: Any = None, may_fork: bool = True
) -> DataLoader[Any]:
    """A loader with all of the user's settings over another sampler (map-style) or dataset (iterable).

    Where it may not fork it has no processes of its own.

    Its processes' seeds come from a generator of its own, so that the rounds of an epoch do not move the script's stream.
    """
    settings: dict[str, Any] = {
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "generator": _generator(loader, worker),
    }
    if loader.num_workers and may_fork:
        settings |= {
            "num_workers": loader.num_workers,
            "timeout": loader.timeout,
            "worker_init_fn": loader.worker_init_fn,
            "multiprocessing_context": loader.multiprocessing_context,
            "persistent_workers": loader.persistent_workers,
            "prefetch_factor": loader.prefetch_factor,
        }
    elif loader.num_workers:
        say(f"the loader's {loader.num_workers} processes are not started here: batches are fetched in the worker's own thread")
    if sampler is None:
        return DataLoader(dataset, batch_size=loader.batch_size, drop_last=loader.drop_last, **settings)
    if loader.batch_sampler is None:
        return DataLoader(loader.dataset, batch_size=None, sampler=sampler, **settings)
    return DataLoader(loader.dataset, batch_sampler=sampler, **settings)  # type: ignore[arg-type]


def _generator(loader: DataLoader[Any], worker: int) -> torch.Generator:
    given: torch.Generator | None = loader.generator
    return torch.Generator().manual_seed(torch.initial_seed() if given is None else given.initial_seed() + worker)
