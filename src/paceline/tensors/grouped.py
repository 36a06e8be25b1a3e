"""A worker's gradients while a group sums them: brought, times their weight, into what is summed as backward passes make them.

`.grad` stays what torch makes it, and until `opt.step()` returns it is what any further sum is made of. So what was brought is
measured again when the gradient is collected: a write to `.grad` past its version counter would else be in no sum.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.logic.partition import Layout, Slot
from paceline.tensors.hooked import NO_GRADIENT, Gradient, Hooked, Seen, SquareMeter, norm_of
from paceline.tensors.memory import bitmap_of
from paceline.tensors.window import PIECE_ELEMENTS


class GroupedGradient(Hooked):
    """The gradient of one parameter: where its weighted copy goes, and what is known of it.

    `squares` holds its sums of squares, `again` takes them a second time, for `piece_elements` each. `written` is called when
    `.grad` holds something else than before. Until the next flip it holds on to the tensors that it saw, so that one that torch
    makes anew is never taken for them.
    """

    def __init__(
        self, slot: Slot, parameter: Tensor, squares: tuple[Tensor, Tensor], *, piece_elements: int, written: Callable[[], None]
    ) -> None:
        super().__init__(slot.index, slot.spec.name, parameter)
        self.start, self.stop = slot.start, slot.stop
        self._squares, self._again = squares
        self._cells, self._cells_again = self._squares.unbind(), self._again.unbind()
        self._piece_elements = piece_elements
        self._written = written
        self._meter = SquareMeter()
        self._places: tuple[Tensor, ...] = ()
        self._arrived: Seen | None = None
        self._measured: Seen | None = None
        self._brought: Seen | None = None
        self._weight = 0.0

    def sum_into(self, place: Tensor) -> None:
        """Bring into `place` (float32, flat) from now on; it holds nothing of this yet."""
        self._places = place.split(self._piece_elements)
        self._brought = None

    def flip(self) -> None:
        """The next gradient is another one."""
        self._arrived = self._measured = self._brought = None

    def forget(self) -> None:
        """The place holds something else by now."""
        self._brought = None

    def bring(self, weight: float | None) -> None:
        """Let the place hold the gradient times `weight`, or zeros, and measure it on the way, if that is not so already."""
        gradient = self.parameter.grad
        if weight is None or gradient is None:
            self._brought = None
            for place in self._places:
                place.zero_()
        elif weight != self._weight or self._brought is None or not self._brought.is_still(gradient):
            self.check(gradient)
            for place, piece, cell in zip(self._places, self._pieces(gradient), self._cells, strict=True):
                if piece.dtype is place.dtype and piece.device == place.device:
                    torch.mul(piece, weight, out=place)
                else:
                    place.copy_(piece).mul_(weight)
                self._meter.square(piece, cell)
            self._measured = self._brought = Seen.now(gradient)
            self._weight = weight

    def measure_again(self) -> None:
        """Take the sums of squares a second time, of what they are of as far as its version counter tells."""
        gradient = self.parameter.grad
        if gradient is not None and self._is_measured(gradient):
            self._measure(gradient, self._cells_again)
        else:
            self._again.copy_(self._squares)

    def collect(self, *, is_rewritten: bool) -> bool | None:
        """Measure what `.grad` is now, if that is not so already; `is_rewritten`: it was written past its version counter.

        None: there is none; True: it was changed after its backward pass.
        """
        gradient = self.parameter.grad
        if gradient is None:
            if self._arrived is not None:
                self._written()
            self._arrived = None
            self._squares.zero_()
            return None
        self.check(gradient)
        self.watch()
        is_new = self._arrived is None or not self._arrived.is_still(gradient)
        if is_rewritten:
            self._measured = self._brought = None
        if is_new or is_rewritten:
            self._written()
        if not self._is_measured(gradient):
            self._measure(gradient, self._cells)
            self._measured = Seen.now(gradient)
        touched = is_rewritten or (is_new and self._arrived is not None)
        self._arrived = Seen.now(gradient)
        return touched

    def square(self) -> float:
        """The sum of squares, in float64 throughout where float32 could not hold it."""
        square = float(self._squares.sum(dtype=torch.float64))
        gradient = self.parameter.grad
        if math.isfinite(square) or gradient is None:
            return square
        return math.fsum(float(wide @ wide) for wide in (piece.double() for piece in self._pieces(gradient)))

    def _is_measured(self, gradient: Tensor) -> bool:
        return self._measured is not None and self._measured.is_still(gradient)

    def _measure(self, gradient: Tensor, cells: Sequence[Tensor]) -> None:
        for piece, cell in zip(self._pieces(gradient), cells, strict=True):
            self._meter.square(piece, cell)

    def _pieces(self, gradient: Tensor) -> Sequence[Tensor]:
        return gradient.detach().reshape(-1).split(self._piece_elements)

    def _arrive(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        self.check(gradient)
        self._arrived = Seen.now(gradient)
        self._written()


class GroupedGradients:
    """The gradients of all trainable parameters, for a group that sums them.

    `on_written` hears which bytes [first, past the last) of a gradient have been written, by a backward pass, while others still
    come, and by `collect`; what it hears of again within a step has changed in between. It may `bring` them.
    """

    def __init__(self, layout: Layout, parameters: Sequence[Tensor]) -> None:
        self.on_written: Callable[[int, int], None] = lambda *_: None
        self._num_parameters = len(parameters)
        trained = [slot for slot in layout.slots if slot.spec.group >= 0]
        self._device = parameters[trained[0].index].device
        is_cached = self._device.type == "cpu"
        largest = max(1, *(slot.num_elements for slot in trained))
        piece_elements = PIECE_ELEMENTS if is_cached else largest  # elsewhere each piece costs a launch
        counts = [max(1, -(-slot.num_elements // piece_elements)) for slot in trained]
        self._squares, self._again = torch.zeros(2, sum(counts), dtype=torch.float32, device=self._device).unbind()
        self._cuts = list(accumulate(counts, initial=0))
        self._slots: list[GroupedGradient] = []
        for slot, (first, past) in zip(trained, pairwise(self._cuts), strict=True):
            cells = (self._squares[first:past], self._again[first:past])
            self._slots.append(
                GroupedGradient(slot, parameters[slot.index], cells, piece_elements=piece_elements, written=self._teller(slot))
            )

    def watch(self) -> None:
        """Hook every parameter that takes gradients."""
        for slot in self._slots:
            slot.watch()

    def release(self) -> None:
        """Take all hooks off."""
        for slot in self._slots:
            slot.release()

    def sum_into(self, places: Sequence[Tensor]) -> bool:
        """Bring each gradient into its place from now on; returns whether those are where the gradients are made."""
        for slot, place in zip(self._slots, places, strict=True):
            slot.sum_into(place)
        return all(place.device == self._device for place in places)

    def bring(self, start: int, stop: int, weight: float | None) -> None:
        """Let the places of all that has some of bytes [start, stop) hold their gradient times `weight`, or zeros."""
        with torch.no_grad():
            for slot in self._between(start, stop):
                slot.bring(weight)

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
        norm = norm_of(self._squares, (slot.square() for slot in self._slots))
        return Gradient(norm, bitmap_of(absent, self._num_parameters), any(is_touched for _, is_touched in found))

    def _rewritten(self) -> list[bool]:
        """Which gradients were written past their version counters, through `.data` or as GradScaler.unscale_ does."""
        for slot in self._slots:
            slot.measure_again()
        # bit by bit, for what is not a number is not equal to itself
        differs = self._squares.view(torch.int32) != self._again.view(torch.int32)
        if not differs.any():
            return [False] * len(self._slots)
        return [bool(differs[first:past].any()) for first, past in pairwise(self._cuts)]

    def _between(self, start: int, stop: int) -> Iterator[GroupedGradient]:
        slots = self._slots
        yield from slots[bisect_right(slots, start, key=attrgetter("stop")) : bisect_left(slots, stop, key=attrgetter("start"))]

    def _teller(self, slot: Slot) -> Callable[[], None]:
        return lambda: self.on_written(slot.start, slot.stop)
