"""A group of workers that sum tensors among themselves through torch.distributed (Gloo: gradients lie in memory of the CPU).

A sum is not atomic: when one of the group is lost some may have it and others not, so what comes of it is for a vote. A group
that broke is not used again; it is let go of in a thread of its own, for its end waits until what is stuck in it times out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.errors import PacelineError
from paceline.transport.store import first_line, serve_store

STORE_S = 15.0
"""How long the others of a group may take to meet once they were told where."""
PIECE_BYTES = 1 << 24
"""What is summed to measure a group."""
MEASURED_TIMES = 3


class GroupError(PacelineError):
    """The group could not meet, or could not do what was asked of all its members."""


class Adding(NamedTuple):
    """A part whose sum is on its way."""

    part: Tensor
    work: Any


class Seat(NamedTuple):
    """Which of how many, of which group, and on which of this machine's addresses it is reached."""

    generation: int
    rank: int
    size: int
    host: str


def convene(host: str) -> tuple[dist.TCPStore, int]:
    """A store at a free port of `host`, and that port. Raises OSError."""
    try:
        return serve_store(host, 0, timedelta(seconds=STORE_S))
    except RuntimeError as error:
        raise OSError(first_line(error)) from error


class Group:
    """One generation of a group of more than one; every member calls the same methods in the same order.

    `store` is there in the member that convened it. An operation may take `timeout_s`. Raises GroupError, as all methods do.
    """

    def __init__(self, seat: Seat, store: dist.TCPStore | None, address: tuple[str, int], *, timeout_s: float) -> None:
        self._seat = seat
        self._timeout = timedelta(seconds=timeout_s)
        host, port = address
        try:
            self._store = store or dist.TCPStore(host, port, None, False, timedelta(seconds=STORE_S), wait_for_workers=False)
            self._group: Any = self._open(dist.PrefixStore(f"paceline/{seat.generation}", self._store))
        except RuntimeError as error:
            raise self._failed("meet", error) from error

    def _open(self, store: dist.Store) -> Any:
        # as torch's own `init_process_group` makes one, but at this address and beside whatever groups the script has
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()  # noqa: SLF001
        options._timeout = self._timeout  # noqa: SLF001
        options._devices = [gloo.create_device(hostname=self._seat.host)]  # noqa: SLF001
        return gloo(store, self._seat.rank, self._seat.size, options)

    def begin(self, part: Tensor, *, ahead_s: float = 0.0) -> Adding:
        """Begin to add up `part` over the members, in place; the others may come to it so much later."""
        options = dist.AllreduceOptions()
        options.timeout = self._timeout + timedelta(seconds=ahead_s)
        try:
            return Adding(part, self._group.allreduce([part], options))
        except RuntimeError as error:
            raise self._failed("sum", error) from error

    def finish(self, addings: Iterable[Adding]) -> None:
        """Until each of them holds its sum."""
        try:
            for adding in addings:
                adding.work.wait(self._timeout)
        except RuntimeError as error:
            raise self._failed("sum", error) from error

    def sum(self, parts: Iterable[Tensor]) -> None:
        """Add up each of `parts` over the members, in place. One is on its way while the next is made."""
        self.finish([self.begin(part) for part in parts])

    def gather(self, own: Tensor) -> Sequence[Tensor]:
        """What each member gives, by rank; all of one shape and dtype."""
        others = [torch.empty_like(own) for _ in range(self._seat.size)]
        try:
            self._group.allgather([others], [own]).wait(self._timeout)
        except RuntimeError as error:
            raise self._failed("gather", error) from error
        return others

    def sum_s(self, size_bytes: int) -> float:
        """What summing so many bytes takes, reckoned from the best of some sums of a piece."""
        piece = torch.zeros(max(1, min(size_bytes, PIECE_BYTES) // 4))
        taken: list[float] = []
        for _ in range(MEASURED_TIMES):
            start_s = time.perf_counter()
            self.sum([piece])
            taken.append(time.perf_counter() - start_s)
        return min(taken) * size_bytes / (4 * piece.numel())

    def close(self) -> None:
        """Let the group go; returns at once."""
        held = [self._group, self._store]
        self._group = self._store = None
        # no daemon: Python must not end while torch takes its threads down
        thread = threading.Thread(target=held.clear, name="paceline group")
        try:
            thread.start()
        except RuntimeError:  # Python is ending, and begins no thread any more
            held.clear()

    def _failed(self, what: str, error: Exception) -> GroupError:
        return GroupError(f"worker group {self._seat.generation} could not {what}: {first_line(error)[:300]}")
