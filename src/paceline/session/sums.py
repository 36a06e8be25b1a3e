"""What a group sums for an update, bucket by bucket, in one order that is the same for all of its members.

A member may begin with its own buckets while its backward pass goes on; the others come to them when they can. That is a
guess of what the update will ask of it. Whether all have guessed right is summed behind the buckets, at no message's cost,
and if one has not, all sum once more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.logic.early import Early
from paceline.session.run import say
from paceline.tensors.grouped import GroupedGradients
from paceline.tensors.whole import WholeShard
from paceline.transport.collective import Adding, Group, GroupError

AHEAD_S = 30.0
"""How much longer a member's step may take than that of one who has begun to sum; beyond it the group breaks, and sums later."""
MOST_WRONG = 3
"""Who has guessed wrong so often stops to guess: each time costs everybody a sum."""
STOPS = (
    f"sums begin at opt.step() from now on: {MOST_WRONG} times a gradient was changed after its backward pass or was in no update, "
    "and all had to sum again"
)


class Sums:
    """Those of one generation, of `gradients`, by which their places in `shard` are filled; `is_early`: this member guesses.

    `num_early` of its buckets have left early, `num_wrong` of its guesses were wrong, `num_again` updates were summed twice.
    """

    def __init__(self, shard: WholeShard, gradients: GroupedGradients, group: Group, *, is_early: bool) -> None:
        self.num_early = self.num_wrong = self.num_again = 0
        self._shard, self._gradients, self._group = shard, gradients, group
        self._early = Early(shard.spans)
        self._is_near = gradients.sum_into(shard.places())
        self._is_early = is_early and self._is_near  # else a backward pass would wait for each copy
        self._guess: float | None = None
        self._begun: list[Adding] = []
        self._error: GroupError | None = None

    def written(self, first: int, past: int, weight: float) -> None:
        """Bytes [first, past) of the gradient, which will be of that weight, are written: brought, and what is complete leaves.

        A weight of 0: nobody computes on a batch, so this is of no step.
        """
        if not weight:
            return
        may_come = self._early.written(first, past)
        if not self._is_near or self._error is not None or self._guess not in (None, weight):
            return
        if may_come:
            self._gradients.bring(first, past, self._shard.scaled(weight))  # while a cache holds it
        if self._is_early:
            self._leave(weight)

    def _leave(self, weight: float) -> None:
        """Begin to sum what is due."""
        while self._early.is_due:
            self._guess = weight
            try:
                self._begun.append(self._group.begin(self._filled(self._early.leave(), weight), ahead_s=AHEAD_S))
            except GroupError as error:
                # a backward pass is no place to say so; the sum will
                self._error = error
                break
            self.num_early += 1

    def stepped(self) -> None:
        """The gradient is complete."""
        self._early.stepped()

    def abandoned(self) -> None:
        """What was written since the last step is in no gradient."""
        self._early.abandoned()
        self._gradients.flip()

    def sum(self, own: float | None) -> None:
        """Sum an update in which this worker's gradient has the weight `own`, None: it is not in there. Raises GroupError."""
        early, group, buckets = self._early, self._group, range(len(self._shard.spans))
        if self._error is not None:
            raise self._error
        is_wrong = early.is_missed or self._guess not in (None, own)
        wrong = torch.tensor([float(is_wrong)])
        fill = self._shard.summed if is_wrong else lambda bucket: self._filled(bucket, own)  # what is wrong is summed for nothing
        begun = [*self._begun, *(group.begin(fill(bucket)) for bucket in buckets[early.num_left :]), group.begin(wrong)]
        self._begun, self._guess = [], None
        self.num_wrong += is_wrong
        if self._is_early and self.num_wrong == MOST_WRONG:
            self._is_early = False
            say(STOPS)
        early.summed()
        group.finish(begun)
        self._gradients.forget()
        if wrong.item():
            self.num_again += 1
            group.sum(self._filled(bucket, own) for bucket in buckets)
            self._gradients.forget()
        self._shard.filled()

    def _filled(self, bucket: int, weight: float | None) -> Tensor:
        """A bucket with this worker's part of its sum."""
        shard, span = self._shard, self._shard.spans[bucket]
        if weight is None:
            self._gradients.clear(*span)
        else:
            self._gradients.bring(*span, shard.scaled(weight))
        return shard.summed(bucket)
