"""A worker's gradients while a group sums them: brought, times their weight, into what is summed as backward passes make them.

`.grad` stays what torch makes it, and until `opt.step()` returns it is what any further sum is made of. A write to it past its
version counter would be in no sum, so what was brought is marked then, and the mark is taken again when the gradient is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.logic.partition import Layout, Slot
from paceline.tensors.hooked import NO_GRADIENT, AllHooked, Gradient, Hooked, Marker, Seen, cuts_of, norm_of, square_of
from paceline.tensors.memory import bitmap_of
from paceline.tensors.spec import CPU
from paceline.tensors.window import PIECE_ELEMENTS, between

DEVICE_PIECE_ELEMENTS = 1 << 22
"""No cache has to hold a piece there, and each costs a launch."""


class Held(NamedTuple):
    """What a place holds: a gradient times `weight`, or, without one, zeros."""

    gradient: Seen | None
    weight: float


ZEROS = Held(None, 0.0)


class Cells(NamedTuple):
    """A number for each piece of a gradient: its sum of squares, its mark, and its mark as it is found later."""

    squares: Tensor
    marks: Tensor
    marks_again: Tensor


class GroupedGradient(Hooked):
    """The gradient of one parameter: where its weighted copy goes, and what is known of it.

    `written` is called when `.grad` holds something else than before. Until the next flip it holds on to the tensors that it
    saw, so that one that torch makes anew is never taken for them.
    """

    def __init__(
        self, slot: Slot, parameter: Tensor, cells: Cells, *, piece_elements: int, marker: Marker, written: Callable[[], None]
    ) -> None:
        super().__init__(slot.index, slot.spec.name, parameter)
        self.start, self.stop = slot.start, slot.stop
        self._cells = cells
        self._squares, self._marks, self._marks_again = (numbers.unbind() for numbers in cells)
        self._piece_elements = piece_elements
        self._marker = marker
        self._written = written
        self._places: Sequence[Tensor] = ()
        self._held: Held | None = None
        self._arrived: Seen | None = None
        self._measured: Seen | None = None

    def sum_into(self, place: Tensor) -> None:
        """Bring into `place` (float32, flat) from now on; it holds nothing of this yet."""
        self._places, self._held = place.split(self._piece_elements), None

    def flip(self) -> None:
        """The next gradient is another one."""
        self._arrived = self._measured = self._held = None

    def forget(self) -> None:
        """The place holds something else by now."""
        self._held = None

    def release(self) -> None:
        """Take the hook off, and let go of place and gradient."""
        super().release()
        self.flip()
        self._places = ()

    def bring(self, weight: float) -> None:
        """Let the place hold the gradient times `weight`, zeros if there is none, and measure it on the way.

        What is so already is not written again: some of it may be on its way.
        """
        gradient = self.parameter.grad
        if gradient is None:
            self.clear()
            return
        if self._holds(gradient, weight):
            return
        self.check(gradient)
        for place, piece, square, mark in zip(self._places, self._pieces(gradient), self._squares, self._marks, strict=True):
            if piece.dtype is place.dtype and piece.device == place.device:
                torch.mul(piece, weight, out=place)
            else:
                place.copy_(piece).mul_(weight)
            self._marker.measure(piece, square, mark)
        self._measured = Seen.now(gradient)
        self._held = Held(self._measured, weight)

    def clear(self) -> None:
        """Let the place hold zeros, if it does not already."""
        if self._held != ZEROS:
            for place in self._places:
                place.zero_()
            self._held = ZEROS

    def mark_again(self) -> None:
        """Take the marks a second time, of what they are of as far as its version counter tells."""
        gradient = self.parameter.grad
        if gradient is None or not self._is_measured(gradient):
            self._cells.marks_again.copy_(self._cells.marks)
            return
        for piece, mark in zip(self._pieces(gradient), self._marks_again, strict=True):
            self._marker.mark(piece, mark)

    def collect(self, *, is_rewritten: bool) -> bool | None:
        """Measure what `.grad` is now, if that is not so already; `is_rewritten`: it was written past its version counter.

        None: there is none; True: it was changed after its backward pass.
        """
        gradient = self.parameter.grad
        if gradient is None:
            if self._arrived is not None:
                self._written()
            self._arrived = None
            self._cells.squares.zero_()
            return None
        self.check(gradient)
        self.watch()
        is_new = self._arrived is None or not self._arrived.is_still(gradient)
        if is_rewritten:
            self._measured = self._held = None
        if is_new or is_rewritten:
            self._written()
        if not self._is_measured(gradient):
            for piece, square, mark in zip(self._pieces(gradient), self._squares, self._marks, strict=True):
                self._marker.measure(piece, square, mark)
            self._measured = Seen.now(gradient)
        touched = is_rewritten or (is_new and self._arrived is not None)
        self._arrived = Seen.now(gradient)
        return touched

    def square(self) -> float:
        """The sum of squares, in float64 throughout where float32 could not hold it."""
        gradient = self.parameter.grad
        return square_of(self._cells.squares, () if gradient is None else self._pieces(gradient))

    def _holds(self, gradient: Tensor, weight: float) -> bool:
        held = self._held
        return held is not None and held.weight == weight and held.gradient is not None and held.gradient.is_still(gradient)

    def _is_measured(self, gradient: Tensor) -> bool:
        return self._measured is not None and self._measured.is_still(gradient)

    def _pieces(self, gradient: Tensor) -> Sequence[Tensor]:
        return gradient.detach().reshape(-1).split(self._piece_elements)

    def _arrive(self, _: Tensor) -> None:
        gradient = self.parameter.grad
        assert gradient is not None
        self.check(gradient)
        self._arrived = Seen.now(gradient)
        self._written()


class GroupedGradients(AllHooked[GroupedGradient]):
    """The gradients of all trainable parameters, for a group that sums them.

    `on_written` hears which bytes [first, past the last) of a gradient have been written, by a backward pass, while others still
    come, and by `collect`; what it hears of again within a step has changed in between. It may `bring` them.
    """

    def __init__(self, layout: Layout, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self.on_written: Callable[[int, int], None] = lambda *_: None
        self._num_parameters = len(parameters)
        trained = layout.trained
        self._device = parameters[trained[0].index].device
        largest = max(1, *(slot.num_elements for slot in trained))
        piece_elements = min(largest, PIECE_ELEMENTS if self._device.type == CPU.type else DEVICE_PIECE_ELEMENTS)
        self._cuts = cuts_of(trained, piece_elements)
        self._cells = Cells(*torch.zeros(3, self._cuts[-1][1], dtype=torch.float32, device=self._device).unbind())
        marker = Marker(piece_elements, self._device)
        for slot, (first, past) in zip(trained, self._cuts, strict=True):
            cells = Cells(*(numbers[first:past] for numbers in self._cells))
            written = partial(self._written, slot.start, slot.stop)
            self._slots.append(
                GroupedGradient(slot, parameters[slot.index], cells, piece_elements=piece_elements, marker=marker, written=written)
            )

    def sum_into(self, places: Sequence[Tensor]) -> bool:
        """Bring each gradient into its place from now on; returns whether those are where the gradients are made."""
        for slot, place in zip(self._slots, places, strict=True):
            slot.sum_into(place)
        return all(place.device == self._device for place in places)

    @torch.no_grad()
    def bring(self, start: int, stop: int, weight: float) -> None:
        """Let the places of all that has some of bytes [start, stop) hold their gradient times `weight`."""
        for slot in between(self._slots, start, stop):
            slot.bring(weight)

    def clear(self, start: int, stop: int) -> None:
        """Let the places of all that has some of bytes [start, stop) hold zeros."""
        for slot in between(self._slots, start, stop):
            slot.clear()

    def forget(self) -> None:
        """All places hold something else by now."""
        for slot in self._slots:
            slot.forget()

    def flip(self) -> None:
        """The update is made: the next gradients are others. `.grad` is the script's to keep or to drop."""
        for slot in self._slots:
            slot.flip()

    @torch.no_grad()
    def collect(self) -> Gradient:
        """The gradient as it is now. Raises UsageError when there is none at all.

        May be called again, after the script changed it further.
        """
        rewritten = self._rewritten()
        found = [(slot, slot.collect(is_rewritten=is_so)) for slot, is_so in zip(self._slots, rewritten, strict=True)]
        absent = [slot.index for slot, is_touched in found if is_touched is None]
        if len(absent) == len(found):
            raise UsageError(NO_GRADIENT)
        norm = norm_of(self._cells.squares, (slot.square() for slot in self._slots))
        return Gradient(norm, bitmap_of(absent, self._num_parameters), any(is_touched for _, is_touched in found))

    def _rewritten(self) -> list[bool]:
        """Which gradients were written past their version counters, through `.data` or as GradScaler.unscale_ does."""
        for slot in self._slots:
            slot.mark_again()
        # bit by bit, for what is not a number is not equal to itself
        differs = self._cells.marks.view(torch.int32) != self._cells.marks_again.view(torch.int32)
        if not differs.any():
            return [False] * len(self._slots)
        return [bool(differs[first:past].any()) for first, past in self._cuts]

    def _written(self, start: int, stop: int) -> None:
        self.on_written(start, stop)
