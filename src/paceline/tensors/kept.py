"""A shard's state as it was at one place of the order, to go back to: copied a window at a time, no later than it changes.

Parts may be split between the copy and the return, never joined, so each present part lies within a kept one. Memory
is allocated at the first time and used again at all later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor

from paceline.errors import ProtocolError
from paceline.tensors.stepper import Stepper
from paceline.tensors.window import Part, Window


class KeptPart:
    """The optimizer state of one part."""

    def __init__(self, first: int, num_elements: int) -> None:
        self.first, self.num_elements = first, num_elements
        self.state: dict[str, object] = {}

    def take(self, state: dict[str, object]) -> None:
        """Copy `state`, into the tensors of the last time where these fit."""
        self.state = {key: _into(self.state.get(key), value) for key, value in state.items()}


class Kept:
    """What is kept of `values`, the bytes of the windows, from byte `start` of the arena on, and of the stepper's state."""

    def __init__(self, windows: Sequence[Window], values: Tensor, start: int, stepper: Stepper) -> None:
        self._windows, self._stepper = windows, stepper
        self._values, self._places = values, [(window.start - start, window.stop - start) for window in windows]
        self._then = values[:0]
        self._parts: list[list[KeptPart]] = [[] for _ in windows]
        self._due: dict[int, Window] = {}

    def mark(self) -> None:
        """The state to keep is the present one."""
        if not self._then.numel():
            self._then = torch.empty_like(self._values)
        self._due = {window.index: window for window in self._windows}

    def settle(self, window: Window) -> None:
        """`window` is about to change: copy it if that is still due."""
        if self._due.pop(window.index, None) is None:
            return
        low, high = self._places[window.index]
        self._then[low:high].copy_(self._values[low:high])
        known = {(one.first, one.num_elements): one for one in self._parts[window.index]}
        parts: list[KeptPart] = []
        for part in window.parts:
            one = known.get((part.first, part.num_elements)) or KeptPart(part.first, part.num_elements)
            one.take(self._stepper.state_of(part))
            parts.append(one)
        self._parts[window.index] = parts

    def settle_next(self) -> bool:
        """Copy one window that is due; returns whether more are."""
        if self._due:
            self.settle(next(iter(self._due.values())))
        return bool(self._due)

    def settle_all(self) -> None:
        """Everything is about to change."""
        while self.settle_next():
            pass

    def restore(self) -> None:
        """Put everything back; windows that are still due have not changed."""
        if not self._then.numel():
            raise ProtocolError("a shard was told to go back to a state that it never kept")
        for window in self._windows:
            if window.index not in self._due:
                low, high = self._places[window.index]
                self._values[low:high].copy_(self._then[low:high])
                for part in window.parts:
                    self._restore_part(window, part)

    def _restore_part(self, window: Window, part: Part) -> None:
        of = next(one for one in reversed(self._parts[window.index]) if one.first <= part.first)
        low = part.first - of.first
        state = self._stepper.state_of(part)
        self._stepper.put_state(
            part,
            {
                key: _into(
                    state.get(key),
                    value[low : low + part.num_elements] if isinstance(value, Tensor) and self._stepper.is_sliced(key, value) else value,
                )
                for key, value in of.state.items()
            },
        )


def _into(memory: object, value: object) -> object:
    """A copy of `value`, in `memory` where it fits there."""
    if not isinstance(value, Tensor):
        return deepcopy(value)
    if isinstance(memory, Tensor) and memory.shape == value.shape and memory.dtype == value.dtype:
        return memory.copy_(value)
    return value.clone()
