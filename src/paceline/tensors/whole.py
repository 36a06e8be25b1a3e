"""All shards as one, in a worker whose group sums gradients: the sum is in the accumulator before the order names it.

What is summed is each gradient times its samples and the scale of the update before, the same in all of the group; what is
then left to scale is the ratio of two scales, which is 1 as long as batches stay as large as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.messages import Member, ModelSpec
from paceline.tensors.memory import typed
from paceline.tensors.shard import Shard
from paceline.tensors.window import BUCKET_ELEMENTS, Window, buckets_of


class WholeShard(Shard):
    """The only shard of a model, over memory of worker `worker`'s own; `arena` is where its gradients are while it is alone.

    In a group of one the gradient is applied where it lies, else summed in buckets of `bucket_elements`; `spans` says which
    bytes of a gradient each of them is, in their order. The first member tells the norm, which is the same in all. With
    a `device` they are summed and stepped there.
    """

    def __init__(
        self,
        model: ModelSpec,
        memory: Tensor,
        worker: int,
        arena: Tensor,
        *,
        device: torch.device | None = None,
        bucket_elements: int = BUCKET_ELEMENTS,
    ) -> None:
        super().__init__(model, 0, 1, memory, device=device)
        self._me = worker
        self._rank, self._num_members = 0, 1
        self._has_met = False
        self._scale = 1.0
        self._buckets = buckets_of(self._windows, bucket_elements)
        self.spans = [(bucket.start, bucket.stop) for bucket in self._buckets]
        self._brought: Mapping[int, Tensor] = {}
        self.attach(worker, 0, arena)

    def meet(self, workers: tuple[int, ...]) -> None:
        """Be one of the group of these workers; what a former group summed and did not apply is forgotten.

        That group may write into what it sums for as long as its end takes, so there is new memory.
        """
        if self._has_met:
            self._reduction = self._new_reduction()
        self._has_met, self._scale = True, 1.0
        self._rank, self._num_members = workers.index(self._me), len(workers)
        if self._means is not None:
            self._means.keep_only(workers)

    def places(self) -> list[Tensor]:
        """Where each parameter's part of the sum is (float32, flat), in the order in which they lie in flat memory."""
        first = dict[int, int]()
        for part in (part for window in self._windows for part in window.parts):
            for slot in part.slots:
                first.setdefault(slot.index, part.first + part.overlap(slot)[0])
        memory = self._reduction.accumulator
        return [memory[first.get(slot.index, 0) :][: slot.num_elements] for slot in self._layout.trained]

    def lend_parameters(self) -> list[Tensor]:
        """The parameters where the optimizer writes them, in the order in which they lie in flat memory, for this worker's model.

        If that is on a device, the memory that the shard was made over shows no change of them from now on.
        """
        self._place.is_shown = False
        return [typed(self._memory, slot.start, slot.stop, slot.spec.dtype).view(slot.spec.shape) for slot in self._layout.trained]

    def summed(self, bucket: int) -> Tensor:
        """What is summed as one bucket, in place."""
        first, num_elements = self._buckets[bucket].first, self._buckets[bucket].num_elements
        return self._reduction.accumulator[first : first + num_elements]

    def scaled(self, weight: float) -> float:
        """By what a gradient of that weight in an update is multiplied before it is summed."""
        return weight * self._scale

    def weight(self, members: tuple[Member, ...]) -> float | None:
        """What this worker's own gradient weighs in an update; None if it is not in there."""
        member = self._own(members)
        return None if member is None else member.weight

    def filled(self) -> None:
        """Every bucket is the sum of an update to come."""
        self._reduction.filled()

    def own_buffers(self, members: tuple[Member, ...]) -> Tensor | None:
        """This worker's own buffers (zeros, when they are in no update) if any member's are to be averaged; None when none are."""
        if not any(member.buffer_samples for member in members):
            return None
        own, peer = self._own(members), self._peer(self._me, 0)
        return torch.zeros_like(peer.buffers[0]) if own is None else peer.buffers[own.buffer]

    def bring(self, buffers: Mapping[int, Tensor]) -> None:
        """What each member's buffers are in the update to come."""
        self._brought = buffers

    def show_buffers(self) -> None:
        """Copy the averaged buffers to where this worker reads them."""
        if self._means is not None:
            self._means.copy_to(self._peer(self._me, 0).mean_buffers)

    # --- as a server's role sees it -----------------------------------------------------------------------

    def reduce(self, members: tuple[Member, ...], scale: float) -> None:
        """The update's gradient is the sum that the accumulator holds; alone it is this worker's own."""
        if self._num_members == 1:
            super().reduce(tuple(map(self._here, members)), scale)
        else:
            self._reduction.begin([], scale / self._scale)
            self._scale = scale

    def square_norm(self) -> float:
        """The squared 2-norm of the update's gradient, told by one of the group."""
        return 0.0 if self._rank else super().square_norm()

    def take_buffers(self, member: Member) -> None:
        """Let a member's buffers count for `buffer_samples` in the means."""
        if self._means is not None:
            self._means.take(member.worker, member.incarnation, self._brought[member.worker], member.buffer_samples)

    def _checks(self, window: Window) -> bool:
        """The same bits are in all of the group, so each member looks at its part of them."""
        return window.index % self._num_members == self._rank

    def _own(self, members: tuple[Member, ...]) -> Member | None:
        return next((member for member in members if member.worker == self._me), None)

    def _here(self, member: Member) -> Member:
        """The member as this worker's memory is known here, whatever incarnation it is."""
        return Member(self._me, 0, member.step, member.buffer, member.weight, buffer_samples=member.buffer_samples)
