"""The samples of an epoch: drawn once with the user's own sampler, then listed for leasing.

Whoever draws an epoch draws the same: the seed is that of the run (or of the script's own generator) plus the epoch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import ceil
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from paceline.errors import UsageError
from paceline.messages import Drawn
from paceline.session.batches import UNSIZED, BatchList, batch_list
from paceline.session.streams import seeded
from paceline.settings import Batch, Leases


class Rules(NamedTuple):
    """The settings that decide how an epoch's samples are listed; `cuts`: as samples, of which batches are cut when leased."""

    leases: Leases
    batch: Batch
    num_workers: int
    cuts: bool = False


class Split(NamedTuple):
    """A batch list with what the coordinator must know of it."""

    batches: BatchList
    drawn: Drawn


class Sampling:
    """How a loader's batches are drawn; remembers what its generators were seeded with."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._loader = loader
        self._seed = seed
        self._sources = _sources(loader)
        self._origins = {id(source): source.generator.initial_seed() for source in self._sources if _has_generator(source)}

    @property
    def dataset_size(self) -> int:
        """How many samples the dataset has; UNSIZED when it does not say."""
        try:
            return len(self._loader.dataset)  # type: ignore[arg-type]
        except TypeError:
            return UNSIZED

    @property
    def is_cut_by_size(self) -> bool:
        """Whether batches are the sampler's stream cut by the loader's batch size, as by default."""
        return type(self._loader.batch_sampler) is BatchSampler and self._loader.batch_size is not None

    def split(self, epoch: int, rules: Rules) -> Split:
        """Draw the batch list of `epoch`. Raises UsageError for a sampler that cannot be leased from."""
        if rules.batch == "global" and rules.leases == "static":
            return self._cut_at_once(epoch, rules)
        if rules.cuts:
            return self._to_be_cut(epoch, rules)
        if rules.leases == "static" and self.is_cut_by_size:
            return self._as_distributed_sampler(epoch, rules)
        batches, bare = self._batches(epoch)
        sizes = tuple(len(batch) for batch in batches)
        owners = tuple(i % rules.num_workers for i in range(len(sizes))) if rules.leases == "static" else ()
        return Split(batch_list(batches, bare=bare), Drawn(epoch, sizes, owners, ceil(len(sizes) / rules.num_workers)))

    def num_updates(self, rules: Rules) -> int:
        """How many sync updates an epoch has, without drawing it. Raises TypeError when a sampler has no length."""
        loader: Any = self._loader
        if rules.batch == "per-worker" and rules.leases == "static" and self.is_cut_by_size:
            return _num_batches(ceil(len(loader.sampler) / rules.num_workers), loader.batch_size, drop_last=loader.drop_last)
        num_batches = len(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        return num_batches if rules.batch == "global" else ceil(num_batches / rules.num_workers)

    def _to_be_cut(self, epoch: int, rules: Rules) -> Split:
        """One list of samples, to be cut by one of the script's batches, or by as many as there are workers."""
        batches, size = self._even_batches(epoch, rules)
        cut = size if rules.batch == "global" else size * rules.num_workers
        num_samples = sum(map(len, batches))
        return Split(batch_list(batches), Drawn(epoch, (num_samples,), (), ceil(num_samples / max(1, cut)), cut=cut))

    def _cut_at_once(self, epoch: int, rules: Rules) -> Split:
        """Each of the script's batches cut evenly among the workers, by a fixed split."""
        batches, _ = self._even_batches(epoch, rules)
        pieces = [
            (batch[start:stop], rank) for batch in batches for rank, (start, stop) in enumerate(_even_cuts(len(batch), rules.num_workers))
        ]
        kept = [(piece, rank) for piece, rank in pieces if piece]
        owners = tuple(rank for _, rank in kept)
        sizes = tuple(len(piece) for piece, _ in kept)
        return Split(batch_list([piece for piece, _ in kept]), Drawn(epoch, sizes, owners, len(batches)))

    def _even_batches(self, epoch: int, rules: Rules) -> tuple[list[Sequence[int]], int]:
        """The script's batches and the size that all of them have but the last, which may be smaller."""
        batches, bare = self._batches(epoch)
        sizes = [len(batch) for batch in batches]
        size = sizes[0] if sizes else 0
        if bare or any(other != size for other in sizes[:-1]) or (sizes and sizes[-1] > size):
            told = "--batch global cuts" if rules.batch == "global" else "shares by speed (--shares speed, --pace hybrid:stragglers) cut"
            raise UsageError(f"{told} the script's batches among the workers, so all must be of one size; this loader's are not")
        return batches, size

    def _as_distributed_sampler(self, epoch: int, rules: Rules) -> Split:
        """Exactly DistributedSampler's split: padded by repetition, rank r takes every N-th sample, then cut into batches."""
        loader: Any = self._loader
        with self._drawing(epoch):
            stream: list[int] = list(loader.sampler)
        padded, ranks = pad(stream, rules.num_workers), range(rules.num_workers)
        updates = _num_batches(len(padded) // rules.num_workers, loader.batch_size, drop_last=loader.drop_last)
        shares = [padded[rank :: rules.num_workers] for rank in ranks]
        batches = [
            share[at : at + loader.batch_size] for at in range(0, updates * loader.batch_size, loader.batch_size) for share in shares
        ]
        sizes = tuple(len(batch) for batch in batches)
        repeated = max(0, sum(sizes) - len(stream))
        return Split(batch_list(batches), Drawn(epoch, sizes, tuple(ranks) * updates, updates, repeated=repeated))

    def _batches(self, epoch: int) -> tuple[list[Sequence[int]], bool]:
        """Every batch of the epoch as the user's samplers give them, and whether each is one bare index."""
        is_batched = self._loader.batch_sampler is not None
        sampler: Any = self._loader.batch_sampler if is_batched else self._loader.sampler
        with self._drawing(epoch):
            drawn: list[Any] = list(sampler)
        bare = bool(drawn) and not isinstance(drawn[0], Sequence)
        if bare and is_batched:
            raise UsageError(f"the loader's batch sampler gives {drawn[0]!r}, which is not a list of integer indices")
        return ([(index,) for index in drawn] if bare else drawn), bare

    @contextmanager
    def _drawing(self, epoch: int) -> Generator[None]:
        """All chance inside comes from a seed plus `epoch`; the script's own streams do not notice."""
        with ExitStack() as stack:
            stack.enter_context(seeded(self._seed + epoch))
            for source in self._sources:
                if hasattr(source, "set_epoch"):
                    source.set_epoch(epoch)
                if id(source) in self._origins:
                    source.generator.manual_seed(self._origins[id(source)] + epoch)
                elif getattr(source, "generator", ...) is None:
                    source.generator = torch.Generator().manual_seed(self._seed + epoch)
                    stack.callback(setattr, source, "generator", None)
            yield


def pad(stream: list[int], multiple: int) -> list[int]:
    """`stream` with its beginning repeated until its length is a multiple.

    >>> pad([7, 8, 9], 2), pad([5], 3)
    ([7, 8, 9, 7], [5, 5, 5])
    """
    missing = -len(stream) % multiple
    return stream + (stream * ceil(missing / max(1, len(stream))))[:missing]


def _num_batches(num_samples: int, size: int, *, drop_last: bool) -> int:
    return num_samples // size if drop_last else ceil(num_samples / size)


def _even_cuts(size: int, parts: int) -> Iterator[tuple[int, int]]:
    """The ranges of `size` in `parts`, the first ones longer by one where it does not go even."""
    start = 0
    for part in range(parts):
        stop = start + size // parts + (part < size % parts)
        yield start, stop
        start = stop


def _has_generator(source: Any) -> bool:
    return isinstance(getattr(source, "generator", None), torch.Generator)


def _sources(loader: DataLoader[Any]) -> list[Any]:
    """The objects that the order may depend on."""
    sources: list[Any] = []
    for source in (loader.batch_sampler, loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(source, DistributedSampler) and source.num_replicas > 1:
            raise UsageError(
                "the loader's sampler is a DistributedSampler, which splits the samples itself; use shuffle=True or a plain sampler"
            )
        if source is not None and all(source is not other for other in sources):
            sources.append(source)
    return sources
