"""What a step does to a window: the values before it are held in memory that stays in the cache, and compared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.tensors.memory import Flat, typed
from paceline.tensors.window import PIECE_ELEMENTS, Piece, Window


class Change:
    """The change of one window after the other, over the parameter arena `memory`."""

    def __init__(self, windows: Sequence[Window], memory: Flat) -> None:
        self._windows, self._memory = windows, memory
        self._held = self._scratch = torch.empty(0)
        self._start = 0

    @property
    def device(self) -> torch.device:
        """Where all this happens."""
        return self._memory.device

    def hold(self, window: Window) -> None:
        """`window` is about to be stepped."""
        if not self._scratch.numel():
            self._held = torch.empty(max(one.stop - one.start for one in self._windows), dtype=torch.uint8, device=self.device)
            self._scratch = torch.empty(PIECE_ELEMENTS, dtype=torch.float32, device=self.device)
        self._start = window.start
        self._held[: window.stop - window.start].copy_(self._memory[window.start : window.stop])

    def now(self, piece: Piece) -> Tensor:
        """The parameters of a piece."""
        return typed(self._memory, piece.start, piece.stop, piece.dtype)

    def before(self, piece: Piece) -> Tensor:
        """What a piece of the held window was."""
        return typed(self._held, piece.start - self._start, piece.stop - self._start, piece.dtype)

    def of(self, piece: Piece) -> Tensor:
        """The change of a piece of the held window in float32, valid until the next call."""
        out = self._scratch[: piece.num_elements]
        if piece.dtype == "float32":
            return torch.sub(self.now(piece), self.before(piece), out=out)
        return out.copy_(self.now(piece)).sub_(self.before(piece))


class Ruler:
    """Squared 2-norms of one update, added up window by window: its gradient, the parameters before, their change."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._gradient = self._parameters = self._moved = 0.0

    def before(self, window: Window, gradients: Sequence[Tensor]) -> None:
        """`window`, which is held, is about to be stepped with `gradients`."""
        self._gradient += sum(_square(gradient) for gradient in gradients)
        self._parameters += sum(_square(self._change.before(piece)) for piece in window.pieces)

    def after(self, window: Window) -> None:
        """`window` was stepped."""
        self._moved += sum(_square(self._change.of(piece)) for piece in window.pieces)

    def squares(self) -> tuple[float, float, float]:
        """All three."""
        return self._gradient, self._parameters, self._moved


def _square(values: Tensor) -> float:
    flat = values.detach().reshape(-1)
    wide = flat if flat.dtype is torch.float32 else flat.float()
    return float(torch.dot(wide, wide))
