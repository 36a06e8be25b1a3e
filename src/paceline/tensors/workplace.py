"""Where a shard's optimizer works: in the shared memory itself, or in a copy of it on a device.

On a device the copy is what counts. Gradients are brought there piece by piece as they are summed, and what an update
has made of a window is shown in the shared memory, where workers read it. Every copy is over when the call returns, so that a worker
may write its buffer again, or read, as soon as it hears of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.errors import ConfigError
from paceline.tensors.memory import Flat, Span
from paceline.tensors.reduction import Source
from paceline.tensors.spec import CPU
from paceline.tensors.window import PIECE_ELEMENTS, WINDOW_BYTES, Window

WIDEST_BYTES = torch.float32.itemsize
DEVICE_WINDOW_BYTES = 1 << 26
"""No cache has to hold a window there, and each costs launches and two waits."""


class FarSource(Source):
    """A gradient in shared memory, of which a piece is brought into `room` on a device when it is asked for, valid until the next is."""

    def __init__(self, memory: Tensor, windows: Sequence[Window], room: Tensor) -> None:
        super().__init__(memory, windows)
        self._room = room

    def piece(self, number: int) -> Tensor:
        """A piece, to be read."""
        near = self.pieces[number]
        return self._room[: near.nbytes].view(near.dtype).copy_(near)


class Workplace:
    """For bytes [start, stop) of the `shared` memory: `memory` is the optimizer's, with the same places.

    Without a `device` the optimizer works in the shared memory itself.
    """

    def __init__(self, shared: Tensor, start: int, stop: int, device: torch.device | None) -> None:
        self._shared, self._device = shared, device
        self.is_shown = device is not None
        """Whether what is made here has to be brought to the shared memory."""
        self.memory: Flat = shared if device is None else Span(shared, start, stop, device)
        self.window_bytes = WINDOW_BYTES if device is None else DEVICE_WINDOW_BYTES
        self._room = torch.empty(0 if device is None else PIECE_ELEMENTS * WIDEST_BYTES, dtype=torch.uint8, device=device)

    @property
    def is_apart(self) -> bool:
        """Whether this is another memory than the shared one."""
        return self._device is not None

    def source(self, memory: Tensor, windows: Sequence[Window]) -> Source:
        """A gradient that a worker writes in `memory`, to be summed here; of all these one piece at a time is here."""
        return FarSource(memory, windows, self._room) if self.is_apart else Source(memory, windows)

    def show(self, start: int, stop: int) -> None:
        """Bytes [start, stop) are new."""
        if self.is_shown:
            self._shared[start:stop].copy_(self.memory[start:stop])


def device_for(name: str, server: int) -> torch.device | None:
    """What `--server-device NAME` means for one of the servers; of a kind without a number each takes the next device.

    Raises ConfigError when torch has no such device here.
    """
    if name == CPU.type:
        return None
    found = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if found is not None else 0
    kind, _, number = name.partition(":")
    if found is None or kind != found.type or int(number or 0) >= count:
        there = f"cpu or {found.type}:0 to {found.type}:{count - 1}" if found is not None else "cpu, for torch finds no accelerator"
        raise ConfigError(f"--server-device {name} is not on this machine; allowed here: {there}")
    return torch.device(kind, int(number) if number else server % count)
