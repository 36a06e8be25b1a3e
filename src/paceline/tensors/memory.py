"""Raw bytes and how they are seen: typed views of shared memory, and bitmaps. A view shares the memory, it never copies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

import torch
from torch import Tensor

from paceline.errors import ProtocolError
from paceline.logic.partition import ITEM_BYTES

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}


class Span:
    """A copy, on `device`, of bytes [start, stop) of a longer memory, found by their places in the whole."""

    def __init__(self, whole: Tensor, start: int, stop: int, device: torch.device) -> None:
        self.device = device
        self._bytes, self._start = whole[start:stop].to(device, copy=True), start

    def __getitem__(self, places: slice) -> Tensor:
        return self._bytes[places.start - self._start : places.stop - self._start]


Flat: TypeAlias = Tensor | Span
"""Flat bytes (uint8), all or some of them."""


def typed(memory: Flat, start: int, stop: int, dtype: str) -> Tensor:
    """Bytes [start, stop) of flat memory as one dimension of `dtype`."""
    return memory[start:stop].view(DTYPES[dtype])


def check_memory(memory: object, size_bytes: int, whose: str) -> Tensor:
    """`memory`, if it is a flat uint8 tensor of at least `size_bytes`, else ProtocolError."""
    if isinstance(memory, Tensor) and memory.dtype is torch.uint8 and memory.dim() == 1 and memory.numel() >= size_bytes:
        return memory
    found = f"{list(memory.shape)} {memory.dtype}" if isinstance(memory, Tensor) else type(memory).__name__
    raise ProtocolError(f"{whose} must be at least {size_bytes} flat bytes (uint8), got {found}")


def has_bit(bitmap: bytes, index: int) -> bool:
    """Whether bit `index` is set; bits beyond the end are not.

    >>> [has_bit(bytes([0b101]), index) for index in (0, 1, 2, 99)]
    [True, False, True, False]
    """
    return index >> 3 < len(bitmap) and bool(bitmap[index >> 3] >> (index & 7) & 1)


def bitmap_of(indices: Collection[int], num_bits: int) -> bytes:
    r"""The bitmap of `num_bits` with these bits set; no bytes at all when there are none.

    >>> bitmap_of([0, 2], 9), bitmap_of([], 9)
    (b'\x05\x00', b'')
    """
    bitmap = bytearray(-(-num_bits // 8) if indices else 0)
    for index in indices:
        bitmap[index >> 3] |= 1 << (index & 7)
    return bytes(bitmap)
