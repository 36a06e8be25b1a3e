"""The weighted sum of a fold's gradients, in float32, a piece at a time and no earlier than it is needed.

Terms are named first; what they sum to is computed window by window while the optimizer works, into memory that
stays in the cache. Only what must outlive a window (accepted gradients, a norm) is kept in the accumulator. A single
term of weight 1 is not copied at all. Nothing is allocated after the first update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.tensors.memory import typed
from paceline.tensors.window import PIECE_ELEMENTS, Part, Piece, Window


class Views:
    """The gradients of a window's parts in one memory, kept until the window is split."""

    def __init__(self, view: Callable[[Window, Part], Tensor]) -> None:
        self._view = view
        self._known: dict[int, tuple[int, list[Tensor]]] = {}

    def of(self, window: Window) -> list[Tensor]:
        """A tensor for each part, of its shape and dtype."""
        version, views = self._known.get(window.index, (-1, []))
        if version != window.version:
            views = [self._view(window, part).view(part.parameter.shape) for part in window.parts]
            self._known[window.index] = (window.version, views)
        return views


class Source:
    """A gradient where its worker wrote it: the whole flat one, of which a shard reads its pieces by their numbers."""

    def __init__(self, memory: Tensor, windows: Sequence[Window]) -> None:
        self.pieces = [typed(memory, piece.start, piece.stop, piece.dtype) for window in windows for piece in window.pieces]
        self.views = Views(lambda _, part: typed(memory, *part.run[2:], part.run.dtype))

    def piece(self, number: int) -> Tensor:
        """A piece, to be read."""
        return self.pieces[number]


class Term(NamedTuple):
    """A gradient and its weight; `correct` gives what is summed in place of a piece (float32), valid until its next call."""

    source: Source
    weight: float
    correct: Callable[[Piece, Tensor], Tensor] | None = None


class Reduction:
    """What a shard's optimizer gets for a gradient: (accumulator * scale + sum of weight * source) * factor.

    With `lend`, a gradient that needs no arithmetic is handed over where its worker wrote it, for reading only. A group writes its
    sum into the `accumulator`, whose padding is 0 and counts in the norm.
    """

    def __init__(self, windows: Sequence[Window], device: torch.device, *, lend: bool) -> None:
        pieces = [piece for window in windows for piece in window.pieces]
        largest = max((window.num_elements for window in windows), default=0)
        has_narrow = any(piece.dtype != "float32" for piece in pieces)
        self._windows = windows
        self._lend = lend
        self.accumulator = torch.zeros(sum(piece.num_elements for piece in pieces), dtype=torch.float32, device=device)
        self._narrow = torch.empty(largest if has_narrow else 0, dtype=torch.bfloat16, device=device)
        self._wide = torch.empty(PIECE_ELEMENTS if has_narrow else 0, dtype=torch.float32, device=device)
        # An accumulator that holds nothing lends its beginning to one window after the other.
        self._kept = [self.accumulator[p.first : p.first + p.num_elements] for p in pieces]
        self._passing = [self.accumulator[p.first - w.first : p.first - w.first + p.num_elements] for w in windows for p in w.pieces]
        self._kept_views = Views(lambda window, part: self._handed(window, part, shift=0))
        self._passing_views = Views(lambda window, part: self._handed(window, part, shift=window.first))
        self._holds = False
        self._scale = 1.0
        self._terms: list[Term] = []

    @property
    def holds(self) -> bool:
        """Whether the accumulator holds a sum."""
        return self._holds

    def gather(self, term: Term) -> None:
        """Add to the accumulator, which begins at zero, now: its source may be written again afterwards."""
        self._terms = [term]
        self._settle()

    def filled(self) -> None:
        """The accumulator holds a sum that somebody else has made there."""
        self._holds = True

    def begin(self, terms: list[Term], scale: float) -> None:
        """Name what the gradient is: the accumulator and `terms`, all times `scale`; sources must stay as they are until `finish`."""
        self._scale = scale
        self._terms = [term._replace(weight=term.weight * scale) for term in terms]

    def square_norm(self) -> float:
        """The squared 2-norm, summed in float32 within a piece and in float64 over pieces."""
        source = self._single(1.0)
        if source is None:
            return self._settle(measure=True)
        return sum(self._square(values) for values in source.pieces)

    def gradients(self, window: Window, factor: float) -> list[Tensor]:
        """The gradients of the window's parts, valid until the next call."""
        source = self._single(factor)
        if source is not None:
            return source.views.of(window)
        for piece in window.pieces:
            out = (self._kept if self._holds else self._passing)[piece.number]
            self._sum(piece, out, factor)
            if piece.dtype != "float32":
                at = piece.first - window.first
                self._narrow[at : at + piece.num_elements].copy_(out)
        return (self._kept_views if self._holds else self._passing_views).of(window)

    def finish(self) -> None:
        """The update is made: the accumulator is empty and no source is needed any more."""
        self._holds = False
        self._scale = 1.0
        self._terms = []

    def _single(self, factor: float) -> Source | None:
        """The one source that is the gradient as it is, if that is so."""
        if not self._lend or self._holds or len(self._terms) != 1:
            return None
        source, weight, correct = self._terms[0]
        return source if correct is None and weight * factor == 1.0 else None

    def _settle(self, *, measure: bool = False) -> float:
        """Take the terms into the accumulator; returns the squared norm of what it holds if that is asked."""
        square = 0.0
        for window in self._windows:
            for piece in window.pieces:
                out = self._kept[piece.number]
                self._sum(piece, out, 1.0)
                if measure:
                    square += self._square(out)
        self._holds = True
        self._scale = 1.0
        self._terms = []
        return square

    def _sum(self, piece: Piece, out: Tensor, factor: float) -> None:
        begun = self._holds
        if begun and self._scale * factor != 1.0:
            out.mul_(self._scale * factor)
        for source, weight, correct in self._terms:
            values = self._widened(source.piece(piece.number))
            if correct is not None:
                values = correct(piece, values)
            if begun:
                out.add_(values, alpha=weight * factor)
            else:
                torch.mul(values, weight * factor, out=out)
            begun = True

    def _widened(self, values: Tensor) -> Tensor:
        return values if values.dtype is torch.float32 else self._wide[: values.numel()].copy_(values)

    def _square(self, values: Tensor) -> float:
        wide = self._widened(values)
        return float(torch.dot(wide, wide))

    def _handed(self, window: Window, part: Part, shift: int) -> Tensor:
        if part.run.dtype == "float32":
            memory, at = self.accumulator, part.first - shift
        else:
            memory, at = self._narrow, part.first - window.first
        return memory[at : at + part.num_elements]
