"""What a worker is made of that holds all shards itself: their memory, and the group that sums its gradients with the others'."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.distributed import TCPStore

from paceline.engine.carry import take_bytes
from paceline.engine.link import Link
from paceline.errors import ProtocolError
from paceline.messages import Fold, Form, Message, ModelSpec, Restate
from paceline.roles.talk import Together
from paceline.session.run import say
from paceline.session.sums import Sums
from paceline.tensors.replica import Replica
from paceline.tensors.spec import CPU
from paceline.tensors.state import assemble
from paceline.tensors.whole import WholeShard
from paceline.transport.collective import Group, GroupError, Seat, convene

GROUP_TIMEOUT_S = 30.0
"""How long one sum may take: a member that has stopped is found out by that; one that has died is by its connection."""
EXCHANGES = 2
"""A gradient's way over the servers is a push and a pull, of which the pull is measured."""


def device_of_shards(summing: torch.device) -> torch.device | None:
    """Where the shards are of one whose group sums on this device; None: in the memory that it was given."""
    return None if summing.type == CPU.type else summing


class Whole:
    """All shards of a worker, from the first group on that it is in; its model is on `device`.

    Its gradients are in `arena`, but for those that a group sums. `weight` tells what the gradient in the making will
    weigh, 0 if that is not known.
    """

    def __init__(
        self,
        link: Link,
        spec: ModelSpec,
        replica: Replica,
        arena: torch.Tensor,
        *,
        weight: Callable[[], float],
        device: torch.device = CPU,
    ) -> None:
        self._link, self._spec, self._replica, self._arena = link, spec, replica, arena
        self._weight = weight
        self._me, self._device = link.member.worker, device
        self._shard: WholeShard | None = None
        self._group: Group | None = None
        self._sums: Sums | None = None
        self._is_early = link.surroundings.overlaps
        self._is_disbanded = False
        self._workers: tuple[int, ...] = ()
        self._convened: TCPStore | None = None
        self._pulling_s = self._pull_s = self._sum_s = 0.0

    # --- what the role asks -------------------------------------------------------------------------------

    @property
    def model(self) -> ModelSpec:
        """What is trained."""
        return self._spec

    def convene(self) -> tuple[str, int]:
        """Open a store for the next group; returns where it is."""
        host = self._link.surroundings.address
        self._convened, port = convene(host)
        return host, port

    def store(self) -> WholeShard:
        """All shards."""
        if self._shard is None:
            raise ProtocolError(f"worker {self._me} has been in no group")
        return self._shard

    def open(self, message: Message, attachments: tuple[int, ...]) -> tuple[object, ...]:
        """A loaded state's bytes."""
        return tuple(map(take_bytes, attachments)) if isinstance(message, Restate) else attachments

    def read(self, *, buffers: bool) -> None:
        """The averaged buffers go to where the worker reads them."""
        if buffers:
            self.store().show_buffers()

    def save(self, *, optimizer: bool) -> bytes:
        """The state of all shards."""
        return self.store().save(optimizer=optimizer)

    def give(self) -> bytes:
        """The state of all shards with the averaged buffers and what no optimizer holds."""
        return self.store().save(optimizer=True, buffers=True)

    def pulling(self) -> None:
        """A pull begins."""
        self._replica.await_copies()
        self._pulling_s = time.perf_counter()

    def pulled(self) -> None:
        """It is over."""
        self._pull_s = time.perf_counter() - self._pulling_s

    def times(self) -> tuple[float, float]:
        """Seconds of summing a gradient in the group, and of its way over the servers."""
        return self._sum_s, EXCHANGES * self._pull_s

    def close(self) -> None:
        """Let the group go."""
        if self._group is not None:
            self._group.close()
            self._group = self._sums = None

    # --- what all of the group do together ----------------------------------------------------------------

    def together(self, asked: Together) -> str:
        """Meet or sum; returns why it could not be done, empty when it was."""
        try:
            match asked.what:
                case Form() as form:
                    self._meet(form, asked.parts)
                case Fold() as fold:
                    self._sum(fold)
        except GroupError as error:
            if self._sums is not None and self._sums.num_early:
                self._is_early = False  # perhaps the others take longer over a step than a sum may wait for them
            return str(error)
        return ""

    def stepped(self) -> None:
        """The gradient is complete. Computed behind a group's end, it shows that the servers have what the group held."""
        if self._sums is not None:
            self._sums.stepped()
        if self._is_disbanded:
            self._shard = None

    def abandoned(self) -> None:
        """What was written since the last step is in no gradient."""
        if self._sums is not None:
            self._sums.abandoned()

    def disband(self) -> None:
        """There is no group any more; the shards may still be asked for, until the servers have them."""
        self.close()
        self._replica.leave_group()
        self._is_disbanded = True

    def _meet(self, form: Form, parts: tuple[object, ...]) -> None:
        self.close()
        self._is_disbanded = False
        if len(form.workers) < len(self._workers):
            self._is_early = self._link.surroundings.overlaps  # it was the lost one that broke the sum
        convened, self._convened = self._convened, None
        seat = Seat(form.generation, form.workers.index(self._me), len(form.workers), self._link.surroundings.address)
        if seat.size > 1:
            store, at = convened if seat.rank == 0 else None, (form.host, form.port)
            called_off = self._link.is_called_off
            self._group = Group(seat, store, at, timeout_s=GROUP_TIMEOUT_S, on=self._device, called_off=called_off)
            if self._group.remark and seat.rank == 0:
                say(f"the group sums on the CPU, by Gloo: {self._group.remark}")
        if form.fresh:
            self._shard = None  # before there are two
            device = device_of_shards(self._device if self._group is None else self._group.device)
            self._shard = WholeShard(self._spec, self._replica.hold(), self._me, self._arena, device=device)
            self._replica.live_in(self._shard.lend_parameters(), near=device is not None)
            states = [self._link.bytes_of(part) for part in parts]
            self._shard.take(assemble(self._spec, len(states), states), parameters=False, optimizer=True)
        self._workers = form.workers
        shard = self.store()
        shard.meet(form.workers)
        if self._group is None:
            self._replica.leave_group()
        else:
            self._sums = Sums(shard, self._replica.enter_group(self._written), self._group, is_early=self._is_early)
        if form.measure and self._group is not None:
            self._sum_s = self._group.sum_s(self._replica.parameter_bytes)

    def _written(self, first: int, past: int) -> None:
        if self._sums is not None:
            self._sums.written(first, past, self._weight())

    def _sum(self, fold: Fold) -> None:
        shard, group, sums = self.store(), self._group, self._sums
        buffers = shard.own_buffers(fold.members)
        if group is None or sums is None:  # both, in a group of one
            shard.bring({} if buffers is None else {self._me: buffers})
            return
        sums.sum(shard.weight(fold.members))
        if buffers is not None:
            shard.bring(dict(zip(self._workers, group.gather(buffers), strict=True)))
