"""The final model of a run, written from the parameter arena as `final.safetensors`: no torch, whole or not at all.

The format (huggingface.co/docs/safetensors): a length of 8 bytes, a JSON header of that length, then the tensors' bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from paceline.errors import WriteError
from paceline.logic.partition import ITEM_BYTES, layout_of, parameter_arena_bytes
from paceline.messages import ModelSpec

FINAL = "final.safetensors"

_CODES = {
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def write_final(run_dir: Path, model: ModelSpec, arena: memoryview) -> Path:
    """Write every parameter and saved buffer under its `state_dict` names, a tied tensor under each of its own.

    Raises WriteError.
    """
    target = run_dir / FINAL
    part = target.with_name(f".{FINAL}.part")
    try:
        with part.open("wb") as file:
            for piece in _pieces(model, arena):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        part.rename(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise WriteError(f"{target} could not be written: {error.strerror or error}") from error
    return target


def _pieces(model: ModelSpec, arena: memoryview) -> Iterator[bytes | memoryview]:
    """The file's parts in order; wide items come first, so that all are aligned."""
    layout = layout_of(model)
    buffers_start, _ = parameter_arena_bytes(layout)
    placed = [(slot, 0) for slot in layout.slots] + [(slot, buffers_start) for slot in layout.buffers if slot.spec.saved]
    placed.sort(key=lambda one: -ITEM_BYTES[one[0].spec.dtype])
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data: list[memoryview] = []
    end = 0
    for slot, offset in placed:
        for name in (slot.spec.name, *slot.spec.aliases):
            start, end = end, end + slot.stop - slot.start
            header[name] = {"dtype": _CODES[slot.spec.dtype], "shape": slot.spec.shape, "data_offsets": (start, end)}
            data.append(arena[offset + slot.start : offset + slot.stop])
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    yield from data
