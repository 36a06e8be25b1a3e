"""Copies between shared memory and the device that a model is on.

They are begun in order, beside what the device computes, and waited for where somebody else reads or writes the
shared memory. A model on the CPU needs none of this: its gradients and parameters lie in shared memory themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

Copies: TypeAlias = Iterable[tuple[Tensor, Tensor]]
"""What to copy: (into, from) each."""

PORTABLE = 1
"""cudaHostRegisterPortable: locked for every device of this process."""


class Staging(Protocol):
    """How a model's tensors and shared memory meet. All copies are made in the order in which they are begun."""

    def bring(self, copies: Copies) -> None:
        """Begin to copy from the device into shared memory, as things are after all that the device was asked for before."""
        ...

    def send(self, copies: Copies) -> None:
        """Begin to copy from shared memory to the device; what the device is asked for from now on finds it done."""
        ...

    def wait(self) -> None:
        """Until everything that was begun has been copied."""
        ...

    def release(self) -> None:
        """Let go of the shared memory; nothing is copied any more."""
        ...


class AtOnce(Staging):
    """Where both are memory of this process: a copy is over when it was begun."""

    def bring(self, copies: Copies) -> None:
        """Copy."""
        for into, source in copies:
            into.copy_(source)

    def send(self, copies: Copies) -> None:
        """Copy."""
        self.bring(copies)

    def wait(self) -> None:
        """Nothing is under way."""

    def release(self) -> None:
        """Nothing is held."""


class Beside(Staging):
    """An accelerator's: one stream for all copies, beside the one that the script computes on.

    The `memories` (uint8, of this process's own maps) are locked where the device's library can do so, since only then
    does a copy run beside anything.
    """

    def __init__(self, device: torch.device, memories: Iterable[Tensor]) -> None:
        self._device = device
        self._stream = torch.Stream(device)
        self._pinned: list[Tensor] = []
        for memory in memories:
            self._pin(memory)

    def bring(self, copies: Copies) -> None:
        """Begin, once what the device computes now is there."""
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))
        self._copy(copies)

    def send(self, copies: Copies) -> None:
        """Begin, once nothing reads the old values; what is computed from now on waits for the new ones."""
        current = torch.accelerator.current_stream(self._device)
        self._stream.wait_stream(current)
        self._copy(copies)
        current.wait_stream(self._stream)

    def wait(self) -> None:
        """For the copies, and what they wait for, only."""
        self._stream.synchronize()

    def release(self) -> None:
        """Unlock the memory."""
        self.wait()
        while self._pinned:
            _cudart().cudaHostUnregister(self._pinned.pop().data_ptr())

    def _copy(self, copies: Copies) -> None:
        with self._stream:
            for into, source in copies:
                into.copy_(source, non_blocking=True)

    def _pin(self, memory: Tensor) -> None:
        if self._device.type != "cuda":
            return
        with torch.cuda.device(self._device):  # or it would begin to use the first one too
            code = int(_cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), PORTABLE))
        if code:
            _forget_error(self._device)
        else:
            self._pinned.append(memory)


def _cudart() -> Any:
    return torch.cuda.cudart()


def _forget_error(device: torch.device) -> None:
    """CUDA keeps the error of a call that torch did not make; the next kernel reports it, so let that be one of no account."""
    try:
        torch.zeros(1, device=device).add_(1)
        torch.accelerator.synchronize(device)
    except RuntimeError:
        pass


def staging_for(device: torch.device, *memories: Tensor) -> Beside | None:
    """What a model on `device` needs to meet the shared `memories`; None on the CPU."""
    return None if device.type == "cpu" else Beside(device, memories)
