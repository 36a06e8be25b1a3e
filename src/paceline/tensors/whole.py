"""All shards as one, in a worker whose group sums gradients: the sum is in the accumulator before the order names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from paceline.messages import Member, ModelSpec
from paceline.tensors.shard import Shard


class WholeShard(Shard):
    """The only shard of a model, over memory of worker `worker`'s own; `arena` is where that worker's gradients are.

    In a group of one the gradient is applied where it lies. `speaks`: this worker tells the norm, which is the same in all.
    """

    def __init__(self, model: ModelSpec, memory: Tensor, worker: int, arena: Tensor) -> None:
        super().__init__(model, 0, 1, memory)
        self._me = worker
        self._is_alone = self._speaks = True
        self._brought: Mapping[int, Tensor] = {}
        self.attach(worker, 0, arena)

    def meet(self, workers: tuple[int, ...]) -> None:
        """Be one of the group of these workers; what a former group summed and did not apply is forgotten."""
        self._reduction.finish()
        self._is_alone, self._speaks = len(workers) == 1, workers[0] == self._me
        if self._means is not None:
            self._means.keep_only(workers)

    def fill(self, members: tuple[Member, ...]) -> Iterator[Tensor]:
        """This worker's part of an update, part by part, to be summed in place with the others'."""
        own = self._own(members)
        return self._reduction.fill(None if own is None else self._term(self._here(own)))

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
        if self._is_alone:
            super().reduce(tuple(map(self._here, members)), scale)
        else:
            self._reduction.begin([], scale)

    def square_norm(self) -> float:
        """The squared 2-norm of the update's gradient, told by one of the group."""
        return super().square_norm() if self._speaks else 0.0

    def take_buffers(self, member: Member) -> None:
        """Let a member's buffers count for `buffer_samples` in the means."""
        if self._means is not None:
            self._means.take(member.worker, member.incarnation, self._brought[member.worker], member.buffer_samples)

    def _own(self, members: tuple[Member, ...]) -> Member | None:
        return next((member for member in members if member.worker == self._me), None)

    def _here(self, member: Member) -> Member:
        """The member as this worker's memory is known here, whatever incarnation it is."""
        return Member(self._me, 0, member.step, member.buffer, member.weight, buffer_samples=member.buffer_samples)
