"""A group of workers that sum tensors among themselves through torch.distributed: by NCCL where each has a GPU of its own, else by Gloo.

A sum is not atomic: when one of the group is lost some may have it and others not, so what comes of it is for a vote. A group
that broke is not used again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.errors import PacelineError
from paceline.transport.store import first_line, hang_up, serve_store

STORE_S = 15.0
"""How long the others of a group may take to meet once they were told where."""
LOOK_S = 0.2
"""How often a member that waits for the others looks whether they are waited for still."""
ASK_S = 0.01
"""How often the store is asked whether the others have come."""
NEVER_SENT = 1
"""The tag of a message between two members that neither sends."""
CALLED_OFF = "it was called off"
PIECE_BYTES = 1 << 24
"""What is summed to measure a group."""
MEASURED_TIMES = 3
CPU = torch.device("cpu")
NO_NCCL = "no NCCL"
NCCL_SETTINGS = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""A sum that fails is an error of who waits for it, not the end of the process."""


class GroupError(PacelineError):
    """The group could not meet, or could not do what was asked of all its members."""


class Adding(NamedTuple):
    """A part whose sum is on its way: `there`, where the group sums, which may be the part itself."""

    part: Tensor
    there: Tensor
    work: Any


class Met(NamedTuple):
    """What comes of a meeting: the store, this group's part of it, and what sums, which is made later when it is NCCL."""

    store: dist.TCPStore
    shared: dist.Store
    backend: str
    remark: str
    gloo: Any


class Seat(NamedTuple):
    """Which of how many, of which group, and on which of this machine's addresses it is reached."""

    generation: int
    rank: int
    size: int
    host: str


def device_name(device: torch.device) -> str:
    """What a member tells of the device that its model is on: nothing of a CPU, of a GPU which one it is, or NO_NCCL."""
    if device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid) if dist.is_nccl_available() else NO_NCCL


def backend_for(names: Sequence[str]) -> tuple[str, str]:
    """What sums for members on these devices, and why it is not NCCL where there are GPUs.

    >>> backend_for(["GPU-1", "GPU-2"]), backend_for(["", ""])
    (('nccl', ''), ('gloo', ''))
    >>> backend_for(["GPU-1", "GPU-1"])
    ('gloo', 'some of its workers share a GPU')
    """
    if not any(names):
        return "gloo", ""
    if NO_NCCL in names:
        return "gloo", "torch was built without NCCL"
    if not all(names):
        return "gloo", "only some of its workers' models are on a GPU"
    return ("nccl", "") if len(set(names)) == len(names) else ("gloo", "some of its workers share a GPU")


def convene(host: str) -> tuple[dist.TCPStore, int]:
    """A store at a free port of `host`, and that port. Raises OSError."""
    try:
        return serve_store(host, 0, timedelta(seconds=STORE_S))
    except RuntimeError as error:
        raise OSError(first_line(error)) from error


class Group:
    """One generation of a group of more than one; every member calls the same methods in the same order.

    `store` is there in the member that convened it. An operation may take `timeout_s`, and is given up as soon as `called_off`
    says that the others are not to be waited for. This member's model is on the device `on`; the group's sums are made on
    `device`, and `remark` is why that is not where the models are. Raises GroupError, as all methods do.
    """

    def __init__(
        self,
        seat: Seat,
        store: dist.TCPStore | None,
        address: tuple[str, int],
        *,
        timeout_s: float,
        on: torch.device = CPU,
        called_off: Callable[[], bool] = lambda: False,
    ) -> None:
        self._seat, self._called_off, self._is_dismissed = seat, called_off, False
        self._timeout_s, self._timeout = timeout_s, timedelta(seconds=timeout_s)
        name = device_name(on)
        try:
            met = self._while_wanted(lambda: self._meet(store, address, name), address)
            self._store, self.remark = met.store, met.remark
            self.device = on if met.backend == "nccl" else CPU
            self._group: Any = self._open_nccl(met.shared) if met.backend == "nccl" else met.gloo
        except RuntimeError as error:
            raise self._failed("meet", error) from error

    def _while_wanted(self, meet: Callable[[], Met], address: tuple[str, int]) -> Met:
        """What `meet` returns, unless that takes too long or is called off.

        Whoever asks a store whose process has stopped, or was cut off, waits for ever. So another thread asks, and is dismissed.
        """
        said: SimpleQueue[Met | Exception] = SimpleQueue()

        def ask() -> None:
            try:
                said.put(meet())
            except Exception as error:  # noqa: BLE001  whoever waits raises it
                said.put(error)

        # no daemon: Python must not end while torch is about to return to it
        meeting = threading.Thread(target=ask, name="paceline meeting")
        meeting.start()
        limit_s = STORE_S + self._timeout_s
        until_s = time.monotonic() + limit_s
        why = ""
        while not why:
            with suppress(Empty):
                met = said.get(timeout=LOOK_S)
                if isinstance(met, Exception):
                    raise met
                return met
            if self._called_off():
                why = CALLED_OFF
            elif time.monotonic() > until_s:
                why = f"it took longer than {limit_s:g} s"
        self._is_dismissed = True
        threading.Thread(target=_dismiss, args=(meeting, address), name="paceline dismissal").start()
        raise RuntimeError(why)

    def _meet(self, store: dist.TCPStore | None, address: tuple[str, int], device: str) -> Met:
        seat, (host, port) = self._seat, address
        store = store or dist.TCPStore(host, port, None, False, timedelta(seconds=STORE_S), wait_for_workers=False)
        shared = dist.PrefixStore(f"paceline/{seat.generation}", store)
        shared.set(f"device/{seat.rank}", device)
        devices = [f"device/{rank}" for rank in range(seat.size)]
        until_s = time.monotonic() + self._timeout_s
        while not shared.check(devices):
            if self._is_dismissed or time.monotonic() > until_s:
                raise RuntimeError(f"of its {seat.size} members some did not come within {self._timeout_s:g} s")
            time.sleep(ASK_S)
        backend, remark = backend_for([shared.get(name).decode() for name in devices])
        return Met(store, shared, backend, remark, None if backend == "nccl" else self._open_gloo(shared))

    def _open_nccl(self, store: dist.Store) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout  # noqa: SLF001
        before = {name: os.environ.get(name) for name in NCCL_SETTINGS}
        os.environ.update(NCCL_SETTINGS)  # read once, now
        try:
            return dist.ProcessGroupNCCL(store, self._seat.rank, self._seat.size, options)
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                os.environ.update({} if value is None else {name: value})

    def _open_gloo(self, store: dist.Store) -> Any:
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
            there = part.to(self.device)
            return Adding(part, there, self._group.allreduce([there], options))
        except RuntimeError as error:
            raise self._failed("sum", error) from error

    def finish(self, addings: Iterable[Adding]) -> None:
        """Until each of them holds its sum."""
        try:
            for adding in addings:
                self._await(adding.work)
                if adding.there is not adding.part:
                    adding.part.copy_(adding.there)
        except RuntimeError as error:
            raise self._failed("sum", error) from error

    def _await(self, work: Any) -> None:
        """Until it is done or has failed, unless that takes too long or is called off."""
        if self.device.type != CPU.type:
            work.wait(self._timeout)  # NCCL ends what was waited for too long
            return
        until_s = time.monotonic() + self._timeout_s
        while True:
            try:
                work.wait(timedelta(seconds=min(LOOK_S, self._timeout_s)))
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # done just now, or it says why it failed
                elif self._called_off():
                    raise RuntimeError(CALLED_OFF) from None
                elif time.monotonic() < until_s:
                    continue
                else:
                    raise
            return

    def sum(self, parts: Iterable[Tensor]) -> None:
        """Add up each of `parts` over the members, in place. One is on its way while the next is made."""
        self.finish([self.begin(part) for part in parts])

    def gather(self, own: Tensor) -> Sequence[Tensor]:
        """What each member gives, by rank; all of one shape and dtype."""
        try:
            there = own.to(self.device)
            others = [torch.empty_like(there) for _ in range(self._seat.size)]
            self._await(self._group.allgather([others], [there]))
            return [other.to(own.device) for other in others]
        except RuntimeError as error:
            raise self._failed("gather", error) from error

    def sum_s(self, size_bytes: int) -> float:
        """What summing so many bytes takes, reckoned from the best of some sums of a piece."""
        piece = torch.zeros(max(1, min(size_bytes, PIECE_BYTES) // 4), device=self.device)
        taken: list[float] = []
        for _ in range(MEASURED_TIMES):
            start_s = time.perf_counter()
            self.sum([piece])
            taken.append(time.perf_counter() - start_s)
        return min(taken) * size_bytes / (4 * piece.numel())

    def close(self) -> None:
        """Let the group go, with what is stuck in it."""
        if self._group is None:
            return
        held: list[Any] = [self._group, self._store]
        self._group = self._store = None
        if self.device.type == CPU.type:
            _let_go(held, other=(self._seat.rank + 1) % self._seat.size)
        elif threading.main_thread().is_alive():
            # no daemon: Python must not end while torch is about to return to it
            threading.Thread(target=_abort, args=(held,), name="paceline group").start()
        else:
            _abort(held)  # Python waits for no further thread

    def _failed(self, what: str, error: Exception) -> GroupError:
        return GroupError(f"worker group {self._seat.generation} could not {what}: {first_line(error)[:300]}")


def _dismiss(meeting: threading.Thread, address: tuple[str, int]) -> None:
    """Let nobody wait any longer for an answer of the store at `address`; who is past that ends at a time limit."""
    meeting.join(LOOK_S)
    while meeting.is_alive():
        hang_up(*address)
        meeting.join(LOOK_S)


def _let_go(held: list[Any], *, other: int) -> None:
    """End a Gloo group at once, whose end else waits for the time limit of what is stuck in it, and which has no abort that helps.

    When one operation is waited for too long, all of them fail. So this waits for a moment for what rank `other` never sends.
    """
    with suppress(RuntimeError):
        held[0].recv([torch.empty(1)], other, NEVER_SENT).wait(timedelta(milliseconds=1))
    held.clear()


def _abort(held: list[Any]) -> None:
    """End an NCCL group; what is stuck on a GPU never ends by itself."""
    with suppress(RuntimeError):
        held[0].abort()
    held.clear()
