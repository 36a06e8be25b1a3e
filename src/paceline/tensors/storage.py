"""Tensors on memory that others see too: one storage each, so that version counters and saved files stay apart."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from paceline.logic.partition import ITEM_BYTES
from paceline.messages import TensorSpec
from paceline.tensors.memory import DTYPES


def tensor_at(memory: Tensor, start: int, spec: TensorSpec) -> Tensor:
    """The tensor of `spec` at byte `start` of `memory` (uint8, one-dimensional).

    Its storage is exactly its bytes: `torch.save` of it does not write the rest of `memory`, and writing it
    moves no other tensor's version counter. It keeps `memory` alive.
    """
    first = memory.storage_offset() + start
    size = prod(spec.shape) * ITEM_BYTES[spec.dtype]
    storage = memory.untyped_storage()[first : first + size]
    strides = torch.empty(spec.shape, device="meta").stride()
    return torch.empty(0, dtype=DTYPES[spec.dtype]).set_(storage, 0, spec.shape, strides)
