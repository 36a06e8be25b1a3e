"""What a group sums for an update, bucket by bucket, in one order that is the same for all of its members.

A member may begin with its own buckets while its backward pass goes on; the others come to them when they can. That is a
guess of what the update will ask of it. Whether all have guessed right is summed behind the buckets, at no message's cost,
and if one has not, all sum once more.
"""

from __future__ import annotations

import torch

from paceline.logic.early import Early
from paceline.session.run import say
from paceline.tensors.whole import Own, WholeShard
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
    """Those of one generation; `is_early`: this member guesses.

    `num_early` of its buckets have left early, `num_wrong` of its guesses were wrong, `num_again` updates were summed twice.
    """

    def __init__(self, shard: WholeShard, group: Group, *, is_early: bool) -> None:
        self.num_early = self.num_wrong = self.num_again = 0
        self._shard, self._group = shard, group
        self._early = Early(shard.spans)
        self._is_early = is_early
        self._guess: Own | None = None
        self._begun: list[Adding] = []
        self._error: GroupError | None = None

    def written(self, first: int, past: int, own: Own) -> bool:
        """Bytes [first, past) of the gradient, which will be `own`, are written. What is now complete leaves; whether any has."""
        if not self._is_early or self._error is not None or self.num_wrong == MOST_WRONG:
            return False
        early = self._early
        early.written(first, past)
        while early.is_due and own.weight and self._guess in (None, own):
            self._guess = own
            try:
                self._begun.append(self._group.begin(self._shard.fill(early.leave(), own), ahead_s=AHEAD_S))
            except GroupError as error:
                # a backward pass is no place to say so; the sum will
                self._error = error
                break
            self.num_early += 1
        return bool(early.num_left)

    def stepped(self) -> None:
        """The gradient is complete."""
        self._early.stepped()

    def abandoned(self) -> None:
        """What was written since the last step is in no gradient."""
        self._early.abandoned()

    def sum(self, own: Own | None) -> None:
        """Sum an update in which this worker's gradient is `own`, None: it has none there. Raises GroupError."""
        early, shard, group, buckets = self._early, self._shard, self._group, range(len(self._shard.spans))
        if self._error is not None:
            raise self._error
        is_wrong = early.is_missed or self._guess not in (None, own)
        wrong = torch.tensor([float(is_wrong)])
        begun = [*self._begun, *(group.begin(shard.fill(bucket, own)) for bucket in buckets[early.num_left :]), group.begin(wrong)]
        self._begun, self._guess = [], None
        self.num_wrong += is_wrong
        if is_wrong and self.num_wrong == MOST_WRONG:
            say(STOPS)
        early.summed()
        group.finish(begun)
        if wrong.item():
            self.num_again += 1
            group.sum(shard.fill(bucket, own) for bucket in buckets)
        shard.filled()
