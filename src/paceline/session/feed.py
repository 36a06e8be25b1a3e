"""One worker's way through the epochs of a run: what it computes on, and how an epoch ends for all.

An epoch is entered, worked on and ended in this order by every worker; `Leases` is fed by the coordinator's ledger,
`Stride` by an iterable dataset, `Steps` by nothing but the script's own loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from paceline.errors import UsageError
from paceline.messages import Draw, EpochOver, Plan
from paceline.roles.talk import Leased
from paceline.session.batches import BatchList, unpack
from paceline.session.sampling import Rules, Sampling
from paceline.session.worker import Worker


class Feed:
    """The epochs themselves: `epoch` is the one to enter next, or the one that is running while `is_open`.

    `entered` is the last one that was entered.
    """

    def __init__(self, worker: Worker, epoch: int) -> None:
        self.worker = worker
        self.epoch = self.entered = epoch
        self.is_open = False
        self.in_loop = False

    def batches(self) -> Iterator[Any]:
        """Work through one epoch; leaving early gives back what is held."""
        if self.in_loop:
            raise UsageError("the prepared loader is being iterated already; a run has one loop over it at a time")
        self.settle()
        self.in_loop = True
        self.entered = self.epoch
        self.worker.begin_epoch(self.epoch)
        self.worker.meter.begin()
        try:
            yield from self.work()
        except GeneratorExit:
            self.leave()
            raise
        finally:
            self.in_loop = False
            self.worker.meter.end()
        self.settle()

    def work(self) -> Iterator[Any]:
        """Enter the epoch and give its batches."""
        raise NotImplementedError

    def leave(self, *, consumed: bool = False) -> None:
        """Nothing more of this epoch is computed here; batches `consumed` without a step are given up."""
        if self.is_open and not (self.worker.is_broken or self.worker.is_over):
            self.worker.discard()
            self.worker.replica.await_copies()
            self.worker.converse(self.worker.role.give_back(self.epoch, consumed=consumed))

    def close(self) -> None:
        """The script's epoch is over: so is the run's, however far this worker came."""
        self.settle()

    def settle(self) -> None:
        """Wait until the epoch that is open, if one is, has ended for all."""
        if self.is_open:
            over = self.worker.converse(self.worker.role.lease(self.epoch, wait=True))
            while over is None:
                over = self.worker.converse(self.worker.role.lease(self.epoch, wait=True))
            self.end(over)

    def end(self, over: EpochOver) -> None:
        """Hold the version of the epoch's end, with its averaged buffers."""
        self.is_open = False
        self.epoch = over.epoch + 1
        self.worker.converse(self.worker.role.at_end(over), reads=1)
        self.worker.replica.load_mean_buffers()


class Leases(Feed):
    """Batches leased from a list that one worker drew; `loader` fetches, with this object as its sampler."""

    def __init__(self, worker: Worker, epoch: int, sampling: Sampling, rules: Rules) -> None:
        super().__init__(worker, epoch)
        self._sampling, self._rules = sampling, rules
        self.loader: Iterable[Any] = ()
        self._list: BatchList | None = None
        self._fetching: deque[Leased] = deque()

    def __iter__(self) -> Iterator[list[int] | int]:
        """The indices of what is leased, in order. Never blocks: it ends when nothing can be leased now."""
        role = self.worker.role
        assert self._list is not None
        while True:
            if not role.unfetched:
                self.worker.converse(role.lease(self.epoch, wait=False))
            if not role.unfetched:
                return
            leased = role.unfetched.popleft()
            self._fetching.append(leased)
            yield self._list.indices(leased)

    def work(self) -> Iterator[Any]:
        """Rounds over what is leased until every sample of the epoch is folded."""
        role = self.worker.role
        self._enter()
        over: EpochOver | None = None
        while over is None:
            if role.held:
                yield from self._round()
                self._cut_off()
            else:
                over = self.worker.converse(role.lease(self.epoch, wait=True))
        self.end(over)

    def _enter(self) -> None:
        """Get the epoch's batch list, or draw it for all."""
        role = self.worker.role
        answer, attachments = self.worker.converse(role.enter(self.epoch, ledger=True, planned=self.worker.planned_epochs))
        if isinstance(answer, Draw):
            split = self._sampling.split(answer.epoch, self._rules._replace(num_workers=answer.num_workers))
            batches = split.batches._replace(drawer=role.worker, dataset_size=self._sampling.dataset_size)
            answer, attachments = self.worker.converse(role.drawn(split.drawn, batches.pack()))
        assert isinstance(answer, Plan)
        self.is_open = True
        self._list = unpack(self.worker.link.read(attachments[0]))
        self._list.check_dataset(role.worker, self._sampling.dataset_size)
        self.worker.updates_per_epoch = answer.updates

    def _round(self) -> Iterator[Any]:
        """What is leased now and comes while it is fetched; entries that were called back meanwhile are passed over."""
        role, batches = self.worker.role, self._list
        assert batches is not None
        self._fetching.clear()
        for batch in self.loader:
            leased = self._fetching.popleft()
            if self._may_start(leased):
                role.take(leased)
                self.worker.give(batches.size(leased))
                yield batch

    def _may_start(self, leased: Leased) -> bool:
        role = self.worker.role
        if not role.held or role.held[0] != leased:
            return False
        if not role.granted and not self._begin():
            return False
        return bool(role.held) and role.held[0] == leased

    def _begin(self) -> bool:
        """Ask to compute on the next entry; batches that then wait for a further one in vain are given up."""
        may_start = self.worker.begin(self.epoch)
        if not may_start and self.worker.role.started:
            self.leave(consumed=True)
        return may_start

    def _cut_off(self) -> None:
        """Batches wait for a further one before their step, and nothing more is held: get one, or give them up."""
        role = self.worker.role
        if role.started and not role.held:
            self._begin()


class Stride(Feed):
    """Every N-th item of an iterable dataset; nobody counts which."""

    def __init__(self, worker: Worker, epoch: int, loader: Iterable[Any], batch_size: int) -> None:
        super().__init__(worker, epoch)
        self._loader = loader
        self._batch_size = batch_size

    def work(self) -> Iterator[Any]:
        """Batches until the dataset ends or the run stops."""
        role = self.worker.role
        self.worker.converse(role.enter(self.epoch, ledger=False, planned=self.worker.planned_epochs))
        self.is_open = True
        for batch in self._loader:
            if not role.granted and not self.worker.begin(self.epoch):
                break
            self.worker.give(size_of(batch, self._batch_size))
            yield batch
        self.leave()


class Steps(Feed):
    """No loader: the script brings its own data, and a step counts as one sample."""

    def open(self) -> None:
        """Begin an epoch and let the first step start."""
        role = self.worker.role
        self.entered = self.epoch
        self.worker.converse(role.enter(self.epoch, ledger=False, planned=self.worker.planned_epochs))
        self.is_open = True
        self.worker.begin(self.epoch)
        self.worker.begin_epoch(self.epoch)
        self.worker.meter.begin()

    def close(self) -> None:
        """End the epoch that is open, with all others."""
        if self.is_open:
            self.worker.meter.end()
            self.leave()
            self.settle()


def size_of(batch: Any, default: int) -> int:
    """The samples of a batch, by its first tensor's first dimension."""
    if hasattr(batch, "shape") and len(batch.shape):
        return int(batch.shape[0])
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple) and batch:
        return size_of(batch[0], default)
    return default
