"""How far the parameters went since a worker read them, and the rule that corrects its gradient for it.

What a worker had read lies in its own arena until its next pull, which under a correction comes after its gradient was
read: no copy of the parameters is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paceline.messages import Member
from paceline.pace import Correction
from paceline.tensors.change import Change
from paceline.tensors.correction import Elements, Overtaken, rule_of
from paceline.tensors.reduction import Source
from paceline.tensors.window import Piece, Window

Correct = Callable[[Piece, Tensor], Tensor]


class Stale:
    """The stale gradients of a shard, whose parameters and their change `change` knows."""

    def __init__(self, windows: Sequence[Window], change: Change, *, scales_gradients: bool) -> None:
        self._pieces = [piece for window in windows for piece in window.pieces]
        self._elements = Elements(sum(piece.num_elements for piece in self._pieces), change.device)
        self._change, self._scales_gradients = change, scales_gradients
        self._correction = Correction()
        self._rule = rule_of(self._correction, Elements(0, change.device), scales_gradients=scales_gradients)
        self._gradient = self._moved = torch.empty(0)
        self._square = self._weight = 0.0

    @property
    def sees_steps(self) -> bool:
        """Whether `stepped` is to be told of every window, which was held before."""
        return self._rule.sees_steps

    def set(self, correction: Correction) -> None:
        """`correction` is in force; what another one remembered is forgotten."""
        if correction == self._correction:
            return
        self._correction = correction
        self._rule = rule_of(correction, self._elements, scales_gradients=self._scales_gradients)
        if not self._moved.numel():
            self._gradient, self._moved = self._elements.room(), self._elements.room()

    def correct(self, member: Member, base: Source) -> Correct | None:
        """What rewrites the pieces of a member's gradient, each once; None when it stays as it is. `base` is what was read."""
        self._weight += member.weight
        if self._correction.rule == "bound" and member.staleness:
            self._square += member.weight * sum(_square(self._moved_since(base, piece)) for piece in self._pieces)
        if self._correction.rule in ("none", "bound") or not (member.staleness or self._rule.sees_fresh):
            return None
        return lambda piece, gradient: self._corrected(piece, gradient, member, base)

    def moved(self) -> float:
        """The squared 2-norm of how far the parameters went since the members of the fold read them, their mean by weight."""
        return self._square / self._weight if self._weight else 0.0

    def stepped(self, window: Window) -> None:
        """`window`, which was held, was stepped."""
        for piece in window.pieces:
            self._rule.stepped(piece, self._change)

    def finish(self) -> None:
        """The update is made, or will not be."""
        self._square = self._weight = 0.0
        self._rule.finish()

    def drop(self, worker: int, incarnation: int) -> None:
        """A worker is gone."""
        self._rule.memory.drop(worker, incarnation)

    def _corrected(self, piece: Piece, gradient: Tensor, member: Member, base: Source) -> Tensor:
        corrected = self._gradient[: piece.num_elements].copy_(gradient)
        moved = self._moved_since(base, piece) if member.staleness else self._moved[: piece.num_elements].zero_()
        self._rule.correct(Overtaken(piece, member, corrected, moved))
        return corrected

    def _moved_since(self, base: Source, piece: Piece) -> Tensor:
        moved, now, then = self._moved[: piece.num_elements], self._change.now(piece), base.piece(piece.number)
        return torch.sub(now, then, out=moved) if piece.dtype == "float32" else moved.copy_(now).sub_(then)


def _square(values: Tensor) -> float:
    return float(torch.dot(values, values))
