"""What all forms of a worker's gradients have in common: hooks, what a step tells of its gradient, and the norm.

The squares of a gradient are summed piece by piece while the cache holds them, in float32, and over pieces in float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from paceline.errors import UsageError
from paceline.logic.partition import Slot
from paceline.tensors.watch import version_of
from paceline.tensors.window import PIECE_ELEMENTS

NO_GRADIENT = "opt.step() was called without a gradient: no parameter of the optimizer has one; call loss.backward() before it"


class Seen(NamedTuple):
    """A gradient as it once was."""

    tensor: Tensor
    version: int

    @classmethod
    def now(cls, gradient: Tensor) -> Seen:
        """As it is."""
        return cls(gradient, version_of(gradient))

    def is_still(self, gradient: Tensor | None) -> bool:
        """Whether this is it, unchanged as far as its version counter tells."""
        return gradient is self.tensor and version_of(gradient) == self.version


class Gradient(NamedTuple):
    """What a step publishes: its 2-norm (nan or inf: not finite), the bitmap of parameters without a gradient.

    Bit `i % 8` of byte `i // 8` stands for parameter `i` of the spec; no bytes at all when none is absent.
    `touched`: the script changed a gradient after its backward pass (clipping, unscaling).
    """

    norm: float
    absent: bytes
    touched: bool


class SquareMeter:
    """Writes sums of squares in float32, of pieces of at most `piece_elements`; other dtypes go through one scratch piece, made once."""

    def __init__(self, piece_elements: int = PIECE_ELEMENTS) -> None:
        self._piece_elements = piece_elements
        self._scratch = torch.empty(0, dtype=torch.float32)

    def square(self, piece: Tensor, into: Tensor) -> None:
        """The sum of squares of a flat `piece`."""
        piece = self._widened(piece)
        torch.dot(piece, piece, out=into)

    def _widened(self, piece: Tensor) -> Tensor:
        """The piece in float32, valid until the next one is."""
        if piece.dtype is torch.float32:
            return piece
        if not self._scratch.numel():
            self._scratch = torch.empty(self._piece_elements, dtype=torch.float32, device=piece.device)
        return self._scratch[: piece.numel()].copy_(piece)


class Marker(SquareMeter):
    """Writes marks too, which change with whatever changes in a piece, its signs and places as well: its product with fixed noise."""

    def __init__(self, piece_elements: int, device: torch.device) -> None:
        super().__init__(piece_elements)
        self._device = device
        self._noise = torch.empty(0)

    def measure(self, piece: Tensor, square: Tensor, mark: Tensor) -> None:
        """Both, of a flat `piece`."""
        piece = self._widened(piece)
        self.square(piece, square)
        self.mark(piece, mark)

    def mark(self, piece: Tensor, into: Tensor) -> None:
        """The mark of a flat `piece`."""
        if not self._noise.numel():
            noise = torch.rand(self._piece_elements, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
            self._noise = (noise + 0.5).to(self._device)
        piece = self._widened(piece)
        torch.dot(piece, self._noise[: piece.numel()], out=into)


class Hooked(ABC):
    """A parameter whose gradients are heard of as backward passes make them."""

    def __init__(self, index: int, name: str, parameter: Tensor) -> None:
        self.index = index
        self.name = name
        self.parameter = parameter
        self._hook: RemovableHandle | None = None

    def watch(self) -> None:
        """Let backward passes fill this slot, once the parameter takes gradients at all."""
        if self._hook is None and self.parameter.requires_grad:
            self._hook = self.parameter.register_post_accumulate_grad_hook(self._arrive)

    def release(self) -> None:
        """Take the hook off."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def check(self, gradient: Tensor) -> None:
        """Raise UsageError for a gradient that has no place in flat memory."""
        if gradient.layout is not torch.strided:
            raise UsageError(
                f"the gradient of parameter {self.name} is {gradient.layout}; allowed: dense, so build its layer with sparse=False"
            )

    @abstractmethod
    def _arrive(self, _: Tensor) -> None:
        """The hook: `.grad` holds this backward pass. It is given what a hook of the script's has returned, in place of the parameter."""


H = TypeVar("H", bound=Hooked)


class AllHooked(Generic[H]):
    """The gradients of all parameters that are trained, a slot for each, in the order in which they lie in flat memory."""

    def __init__(self) -> None:
        self._slots: list[H] = []

    def watch(self) -> None:
        """Hook every parameter that takes gradients."""
        for slot in self._slots:
            slot.watch()

    def release(self) -> None:
        """Take all hooks off."""
        for slot in self._slots:
            slot.release()


def cuts_of(slots: Iterable[Slot], piece_elements: int) -> list[tuple[int, int]]:
    """For each slot which numbers [first, past) are those of its pieces, of which an empty one has one too."""
    counts = (max(1, -(-slot.num_elements // piece_elements)) for slot in slots)
    return list(pairwise(accumulate(counts, initial=0)))


def square_of(squares: Tensor, pieces: Iterable[Tensor]) -> float:
    """The sum of `squares`, the pieces' own in float32; in float64 throughout, and of `pieces` again, where float32 could not hold it."""
    square = float(squares.sum(dtype=torch.float64))
    if math.isfinite(square):
        return square
    return math.fsum(float(wide @ wide) for wide in (piece.double() for piece in pieces))


def norm_of(squares: Tensor, exactly: Iterable[float]) -> float:
    """The 2-norm of what has these sums of squares in float32; `exactly`, made only then, are those where float32 could not hold them."""
    square = float(squares.sum(dtype=torch.float64))
    if not math.isfinite(square):
        square = math.fsum(exactly)
    return math.sqrt(square) if square >= 0.0 else math.nan
