"""A worker's gradients: copied into its arena while they are hot, measured in the same pass, published from there.

A hook copies each fresh `.grad` and points `.grad` at the arena, so that what follows (accumulation, clipping)
writes the arena itself. What the hooks could not see is caught up with when the gradient is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.logic.partition import Layout, arena_map
from paceline.tensors.hooked import NO_GRADIENT, AllHooked, Gradient, Hooked, SquareMeter, cuts_of, norm_of, square_of
from paceline.tensors.memory import bitmap_of
from paceline.tensors.storage import tensor_at
from paceline.tensors.watch import version_of
from paceline.tensors.window import PIECE_ELEMENTS

UNKNOWN = -1


class ParameterGradient(Hooked):
    """The gradient of one parameter: its place in both buffers, and what is known about the current one.

    `measured` is the version of the current view whose squares are known, `arrived_at` the one that the last
    hook left. `foreign` is a tensor of the script's own that was found in `.grad`: if it is kept there, it stays.
    `written` is called whenever the current view holds something else than before.
    """

    def __init__(
        self,
        index: int,
        name: str,
        parameter: Tensor,
        views: tuple[Tensor, Tensor],
        *,
        squares: Tensor,
        meter: SquareMeter,
        written: Callable[[], None],
    ) -> None:
        super().__init__(index, name, parameter)
        self.views = views
        self.written = written
        self.squares = squares
        self.current = 0
        self.view = views[0]
        self.measured = self.arrived_at = UNKNOWN
        self._pieces = [view.view(-1).split(PIECE_ELEMENTS) for view in views]
        self._cells = squares.unbind()
        self._meter = meter
        self._foreign: Tensor | None = None
        self._counted = False
        self._zero = [True, True]  # a new arena holds zeros

    def flip(self, buffer: int, *, keep: bool) -> None:
        """Work in `buffer` from now on; without `keep`, `.grad` lets go of the other one, which is in flight."""
        if not keep and self.parameter.grad is self.view:
            self.parameter.grad = None
        self.current = buffer
        self.view = self.views[buffer]
        self.measured = self.arrived_at = UNKNOWN

    def collect(self) -> bool | None:
        """Bring what `.grad` is now into the current buffer. None: there is none; True: it was changed after backward."""
        gradient = self.parameter.grad
        if gradient is None:
            self._clear()
            return None
        if gradient is not self.view:
            return self._adopt(gradient)
        version = version_of(self.view)
        if version != self.measured:
            is_new = self.measured == UNKNOWN or version != self.arrived_at
            self.measure()
            if is_new:
                self.written()
        return version != self.arrived_at

    def take_back(self) -> None:
        """Let the current buffer hold what `.grad` is, and `.grad` be the buffer, as after a backward pass."""
        gradient = self.parameter.grad
        if gradient is not None and gradient is not self.view:
            self._fill(gradient.detach())
            self.parameter.grad = self.view
            self.arrived_at = version_of(self.view)

    def measure(self) -> None:
        """Measure the current view, now cold."""
        for piece, cell in zip(self._pieces[self.current], self._cells, strict=True):
            self._meter.square(piece, cell)
        self.measured = version_of(self.view)
        self._counted = True

    def square(self) -> float:
        """The sum of squares, in float64 throughout where float32 could not hold it."""
        return square_of(self.squares, self._pieces[self.current])

    def is_measured(self) -> bool:
        """Whether `.grad` is the current view, and as far as its version counter tells its squares are known."""
        return self.measured != UNKNOWN and self.parameter.grad is self.view and self.measured == version_of(self.view)

    def looks_rewritten(self, probe: Tensor, *, wholly: bool) -> bool:
        """Whether the first piece, or with `wholly` any, no longer has the squares that were measured."""
        pieces = self._pieces[self.current]
        for piece, cell in zip(pieces if wholly else pieces[:1], self._cells, strict=False):
            self._meter.square(piece, probe)
            if bool(probe != cell):
                return True
        return False

    def _arrive(self, _: Tensor) -> None:
        gradient = self.parameter.grad
        assert gradient is not None
        if gradient is not self.view:
            self.check(gradient)
            if gradient.requires_grad or gradient.dtype is not self.view.dtype or gradient is self._foreign:
                return
            self._fill(gradient)
            self.parameter.grad = self.view
            self._foreign = None
        self.arrived_at = version_of(self.view)
        self.written()

    def _adopt(self, gradient: Tensor) -> bool:
        """Copy a gradient that is not the current view: the script's own, or one left in the other buffer."""
        self.check(gradient)
        self.watch()
        self._fill(gradient.detach())
        self.written()
        if gradient is self.views[1 - self.current]:
            self.parameter.grad = self.view
        else:
            self._foreign = gradient
        return self.arrived_at != UNKNOWN

    def _fill(self, source: Tensor) -> None:
        pieces = self._pieces[self.current]
        if len(pieces) > 1 and source.is_contiguous():
            for piece, part, cell in zip(pieces, source.view(-1).split(PIECE_ELEMENTS), self._cells, strict=True):
                piece.copy_(part)
                self._meter.square(piece, cell)
            self.measured = version_of(self.view)
            self._counted = True
        else:
            self.view.copy_(source)
            self.measure()
        self._zero[self.current] = False

    def _clear(self) -> None:
        if not self._zero[self.current]:
            self.view.zero_()
            self._zero[self.current] = True
            self.written()
        if self._counted:
            self.squares.zero_()
            self._counted = False


class Gradients(AllHooked[ParameterGradient]):
    """The gradients of all trainable parameters, in the two buffers of a worker's arena."""

    def __init__(self, layout: Layout, parameters: Sequence[Tensor], arena: Tensor) -> None:
        super().__init__()
        starts = arena_map(layout).gradients
        cuts = cuts_of(layout.trained, PIECE_ELEMENTS)
        self._squares = torch.zeros(cuts[-1][1], dtype=torch.float32, device=arena.device)
        self._probe = torch.zeros((), dtype=torch.float32, device=arena.device)
        self._num_parameters = len(parameters)
        self.on_written: Callable[[int, int], bool] | None = None
        """Hears which bytes [first, past the last) of the gradient buffer have been written: by a backward pass, while others still
        come, and by `collect`. What it hears of again within a step has changed in between. It returns whether any of the step
        has left for the servers already."""
        self._has_left = False
        meter = SquareMeter()
        for slot, (low, high) in zip(layout.trained, cuts, strict=True):
            first, second = (tensor_at(arena, start + slot.start, slot.spec) for start in starts)
            squares = self._squares[low:high]
            parameter = parameters[slot.index]
            written = partial(self._written, slot.start, slot.stop)
            self._slots.append(
                ParameterGradient(slot.index, slot.spec.name, parameter, (first, second), squares=squares, meter=meter, written=written)
            )

    def flip(self, buffer: int, *, keep: bool) -> None:
        """The next gradient goes into `buffer`; with `keep`, the last one is nobody's any more and stays in `.grad`."""
        self._has_left = False
        for slot in self._slots:
            slot.flip(buffer, keep=keep)

    @torch.no_grad()
    def take_back(self) -> None:
        """Somebody else has seen to what backward passes have made; it is in `.grad`, whose memory is the current buffer from now on."""
        for slot in self._slots:
            slot.take_back()

    @torch.no_grad()
    def collect(self) -> Gradient:
        """The gradient as it is now, complete in the current buffer. Raises UsageError when there is none at all.

        May be called again, after the script changed it further.
        """
        rewritten = self._rewritten()
        touched = rewritten
        absent: list[int] = []
        for slot in self._slots:
            if rewritten:
                slot.measured = UNKNOWN
            found = slot.collect()
            if found is None:
                absent.append(slot.index)
            elif found:
                touched = True
        if len(absent) == len(self._slots):
            raise UsageError(NO_GRADIENT)
        norm = norm_of(self._squares, (slot.square() for slot in self._slots))
        return Gradient(norm, bitmap_of(absent, self._num_parameters), touched)

    def _written(self, start: int, stop: int) -> None:
        if self.on_written is not None:
            self._has_left = self.on_written(start, stop)

    def _rewritten(self) -> bool:
        """Whether gradients were written past their version counters, through `.data` or as GradScaler.unscale_ does.

        One piece tells of what changes all; it is only the norm that is older then. But of what has left none may have changed.
        """
        if self._has_left:
            return any(slot.looks_rewritten(self._probe, wholly=True) for slot in self._slots if slot.is_measured())
        probed = next((slot for slot in self._slots if slot.is_measured() and slot.squares[0] > 0.0), None)
        return probed is not None and probed.looks_rewritten(self._probe, wholly=False)
