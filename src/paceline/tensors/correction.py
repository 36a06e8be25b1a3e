"""What is done to a gradient whose worker had read older parameters: a class of a few lines for each rule.

A rule sees a gradient piece by piece and rewrites it in place; it allocates nothing after the first updates.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from paceline.messages import Member
from paceline.pace import Correction
from paceline.tensors.change import Change
from paceline.tensors.window import PIECE_ELEMENTS, Piece

SQUARES_KEPT = 0.95
SQUARES_EPSILON = 1e-7
"""DC-ASGD-a's running mean of squares: the published setting for CIFAR-10, and what its authors' code adds to it."""
LENGTHS_RENEWED = 0.01
"""The mean length of an update looks back about 100 updates that moved the element."""


class Elements(NamedTuple):
    """How many elements a shard has, and where."""

    number: int
    device: torch.device

    def room(self) -> Tensor:
        """Memory for a piece of them."""
        return torch.empty(PIECE_ELEMENTS, device=self.device)


class Memory:
    """Numbers that a rule remembers, one for each element of the shard and for each owner; zeros at first."""

    def __init__(self, elements: Elements) -> None:
        self._elements = elements
        self._numbers: dict[tuple[int, int], Tensor] = {}

    def of(self, piece: Piece, owner: tuple[int, int] = (-1, 0)) -> Tensor:
        """Those of a piece; without a worker for an owner, the shard's."""
        numbers = self._numbers.get(owner)
        if numbers is None:
            numbers = self._numbers[owner] = torch.zeros(self._elements.number, device=self._elements.device)
        return numbers[piece.first : piece.first + piece.num_elements]

    def drop(self, worker: int, incarnation: int) -> None:
        """This worker is gone."""
        self._numbers.pop((worker, incarnation), None)


class Overtaken(NamedTuple):
    """A piece of a member's gradient, and how far its parameters `moved` since the worker read them; float32, to be written."""

    piece: Piece
    member: Member
    gradient: Tensor
    moved: Tensor


class Rule:
    """Leaves gradients as they are. `sees_fresh`: it is shown gradients of staleness 0 too, with `moved` all zero.

    `sees_steps`: it is told of every window's step.
    """

    sees_fresh: ClassVar[bool] = False
    sees_steps: ClassVar[bool] = False

    def __init__(self, strength: float, elements: Elements) -> None:
        self.strength = strength
        self.memory = Memory(elements)
        self.room = elements.room()

    def correct(self, one: Overtaken) -> None:
        """Rewrite the piece of a gradient; `moved` may be written too."""

    def stepped(self, piece: Piece, change: Change) -> None:
        """A piece was stepped."""

    def finish(self) -> None:
        """The update is made, or will not be."""


class Compensate(Rule):
    """DC-ASGD: g + strength * g * g * d (Zheng et al. 2017)."""

    def correct(self, one: Overtaken) -> None:
        """Add the term."""
        one.gradient.addcmul_(one.moved.mul_(one.gradient), one.gradient, value=self.strength)


class CompensateAdaptively(Rule):
    """DC-ASGD-a: the strength is divided by the root of the running mean of the worker's g * g, this one included."""

    sees_fresh = True

    def correct(self, one: Overtaken) -> None:
        """Renew the mean and add the term."""
        piece, member, gradient, moved = one
        squares = self.memory.of(piece, (member.worker, member.incarnation))
        squares.mul_(SQUARES_KEPT).addcmul_(gradient, gradient, value=1.0 - SQUARES_KEPT)
        root = torch.add(squares, SQUARES_EPSILON, out=self.room[: piece.num_elements]).sqrt_()
        gradient.addcdiv_(moved.mul_(gradient).mul_(gradient), root, value=self.strength)


class GapAware(Rule):
    """g / (1 + |d| / (strength * c)), c the mean length of an update of the element (Barkai et al. 2019).

    Updates that leave an element where it is do not count in c; before the first that moves it, the gradient stays.
    """

    sees_steps = True

    def __init__(self, strength: float, elements: Elements) -> None:
        super().__init__(strength, elements)
        self.masks = elements.room()

    def correct(self, one: Overtaken) -> None:
        """Divide."""
        one.gradient.div_(self.penalty(one))

    def penalty(self, one: Overtaken) -> Tensor:
        """The divisor of each element, written over `moved`."""
        gap = one.moved.abs_().div_(self.memory.of(one.piece)).div_(self.strength)
        return gap.nan_to_num_(nan=0.0, posinf=0.0).add_(1.0)

    def stepped(self, piece: Piece, change: Change) -> None:
        """Renew the mean."""
        length, mean = change.of(piece).abs_(), self.memory.of(piece)
        # the share of the new length: 1 in an element's first update, 0 where it stayed; masks of booleans are far slower
        share, has_moved = self.room[: piece.num_elements], self.masks[: piece.num_elements]
        torch.eq(mean, 0.0, out=share).mul_(1.0 - LENGTHS_RENEWED).add_(LENGTHS_RENEWED)
        share.mul_(torch.ne(length, 0.0, out=has_moved))
        mean.addcmul_(length.sub_(mean), share)


class GapAwareSteps(GapAware):
    """The same for optimizers that do not feel a gradient's length: what each element's step is multiplied by is 1 / penalty.

    Of several members it is the mean by weight.
    """

    sees_fresh = True

    def __init__(self, strength: float, elements: Elements) -> None:
        super().__init__(strength, elements)
        self.shares = Memory(elements)
        self.finish()

    def correct(self, one: Overtaken) -> None:
        """Leave the gradient, note the share."""
        number, weight, shares = one.piece.number, one.member.weight, self.shares.of(one.piece)
        if number not in self._weights:
            shares.zero_()
        self._is_stale = self._is_stale or one.member.staleness > 0
        self._weights[number] = self._weights.get(number, 0.0) + weight
        shares.add_(self.penalty(one).reciprocal_(), alpha=weight)

    def stepped(self, piece: Piece, change: Change) -> None:
        """Take part of the step back."""
        if self._is_stale:
            step = change.of(piece).mul_(self.shares.of(piece)).div_(self._weights[piece.number])
            change.now(piece).copy_(change.before(piece)).add_(step)
        super().stepped(piece, change)

    def finish(self) -> None:
        """Begin anew."""
        self._weights: dict[int, float] = {}
        self._is_stale = False


RULES: dict[str, type[Rule]] = {"none": Rule, "dc": Compensate, "dca": CompensateAdaptively, "gap": GapAware, "bound": Rule}
"""By the pace's word; `bound` is one number for all shards, which the coordinator computes."""


def rule_of(correction: Correction, elements: Elements, *, scales_gradients: bool) -> Rule:
    """The rule of `correction` for a shard of these elements."""
    rule = GapAwareSteps if correction.rule == "gap" and not scales_gradients else RULES[correction.rule]
    return rule(correction.strength, elements)
