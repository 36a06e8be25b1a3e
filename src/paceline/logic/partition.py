"""Where every parameter lies in the flat memory of a run, and where the flat memory is cut into shards.

Pure arithmetic on specs: the same inputs give the same layout in every process, so no layout is ever sent.
Trainable parameters come first, sorted by (group, dtype) so that neighbours share their optimizer settings;
those without an optimizer follow. Everything starts at a multiple of 64 bytes; the gaps hold zeros.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

from paceline.errors import UsageError
from paceline.messages import ModelSpec, TensorSpec

ALIGN_BYTES = 64
PAGE_BYTES = 4096
LEAST_SHARD_BYTES = 4 << 20
"""A model is cut into more shards only when each has so many bytes, unless the user says how many servers there are."""
LEAST_FAR_SHARD_BYTES = 1 << 16
"""The same where each server is on a host of its own: there every byte beyond its part costs more than a message does."""

ITEM_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
TRAINABLE = frozenset({"float32", "bfloat16"})

Memory = Literal["private", "shards", "whole"]
"""Where a worker's parameters are: a copy of its own, the servers' shards, or all shards, which it holds itself."""


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One tensor in the flat memory: bytes [start, stop), of which a tail may be padding of the next slot."""

    index: int
    spec: TensorSpec
    start: int
    stop: int

    @property
    def num_elements(self) -> int:
        """Elements of the tensor, padding left out."""
        return prod(self.spec.shape)


class Run(NamedTuple):
    """Neighbouring slots of one group and dtype within one shard: bytes [start, stop) of the flat memory."""

    group: int
    dtype: str
    start: int
    stop: int


class Layout(NamedTuple):
    """The flat memory: `slots` of parameters in memory order, `buffers` in a segment of their own."""

    slots: tuple[Slot, ...]
    trainable_bytes: int
    parameter_bytes: int
    buffers: tuple[Slot, ...]
    buffer_bytes: int

    @property
    def trained(self) -> list[Slot]:
        """Those of the `slots` that an optimizer holds, which come first."""
        return [slot for slot in self.slots if slot.spec.group >= 0]


class ArenaMap(NamedTuple):
    """Byte offsets of the segments of a worker's arena, each on a page of its own, and its size.

    Two gradient buffers (each with a copy of the model's buffers), the private parameters and the averaged
    buffers that were pulled.
    """

    gradients: tuple[int, int]
    buffers: tuple[int, int]
    parameters: int
    mean_buffers: int
    size_bytes: int


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def _place(specs: list[tuple[int, TensorSpec]], start: int) -> tuple[list[Slot], int]:
    slots: list[Slot] = []
    for index, spec in specs:
        stop = start + prod(spec.shape) * ITEM_BYTES[spec.dtype]
        slots.append(Slot(index, spec, start, stop))
        start = _up(stop, ALIGN_BYTES)
    return slots, start


def layout_of(model: ModelSpec) -> Layout:
    """The flat layout of `model`. Raises UsageError for a dtype that cannot be trained or carried."""
    for spec in (*model.parameters, *model.buffers):
        if spec.dtype not in ITEM_BYTES or (spec.group >= 0 and spec.dtype not in TRAINABLE):
            allowed = ", ".join(sorted(TRAINABLE if spec.group >= 0 else ITEM_BYTES))
            raise UsageError(f"{spec.name} has dtype {spec.dtype}, which is not supported; allowed: {allowed}")
    numbered = list(enumerate(model.parameters))
    trained = sorted((p for p in numbered if p[1].group >= 0), key=lambda p: (p[1].group, p[1].dtype, p[0]))
    trainable, trainable_bytes = _place(trained, 0)
    constant, parameter_bytes = _place([p for p in numbered if p[1].group < 0], trainable_bytes)
    buffers, buffer_bytes = _place(list(enumerate(model.buffers)), 0)
    return Layout(tuple(trainable + constant), trainable_bytes, parameter_bytes, tuple(buffers), buffer_bytes)


def shards_worth(layout: Layout, num_servers: int, least_bytes: int = LEAST_SHARD_BYTES) -> int:
    """How many of `num_servers` are worth a shard: each message of an update costs what moving some megabytes costs.

    >>> shards_worth(Layout((), 4_000_000, 4_000_000, (), 0), 2), shards_worth(Layout((), 100_000_000, 100_000_000, (), 0), 2)
    (1, 2)
    """
    return max(1, min(num_servers, layout.trainable_bytes // least_bytes))


def borders_of(layout: Layout, num_shards: int, *, elementwise: bool) -> tuple[int, ...]:
    """The `num_shards + 1` byte positions at which the trainable memory is cut.

    An elementwise optimizer may be cut at any multiple of 64 bytes; others are cut where a parameter starts.
    A shard may be empty when there is less to cut than shards.
    """
    total = layout.trainable_bytes
    starts = [slot.start for slot in layout.trained if slot.start < total] + [total]
    borders = [0]
    for shard in range(1, num_shards):
        ideal = total * shard // num_shards
        if elementwise:
            border = ideal // ALIGN_BYTES * ALIGN_BYTES
        else:
            after = bisect_left(starts, ideal)
            before = max(after - 1, 0)
            border = min(starts[before], starts[after], key=lambda at: abs(at - ideal))
        borders.append(max(border, borders[-1]))
    return (*borders, total)


def runs_of(layout: Layout, start: int, stop: int, *, elementwise: bool) -> tuple[Run, ...]:
    """The tensors that a shard [start, stop) hands to its optimizer: merged runs, or one per parameter.

    A run's end is padded up to where the next slot starts.
    """
    runs: list[Run] = []
    for slot in layout.slots:
        padded = _up(slot.stop, ALIGN_BYTES)
        low, high = max(slot.start, start), min(padded if elementwise else slot.stop, stop)
        if slot.spec.group < 0 or low >= high:
            continue
        last = runs[-1] if runs else None
        if elementwise and last and last.stop == low and (last.group, last.dtype) == (slot.spec.group, slot.spec.dtype):
            runs[-1] = last._replace(stop=high)
        else:
            runs.append(Run(slot.spec.group, slot.spec.dtype, low, high))
    return tuple(runs)


def arena_map(layout: Layout) -> ArenaMap:
    """Where things lie in a worker's arena.

    >>> arena_map(Layout((), 64, 128, (), 0))
    ArenaMap(gradients=(0, 4096), buffers=(8192, 8192), parameters=8192, mean_buffers=12288, size_bytes=12288)
    """
    gradients, buffers = _up(layout.trainable_bytes, PAGE_BYTES), _up(layout.buffer_bytes, PAGE_BYTES)
    parameters = 2 * gradients + 2 * buffers
    mean_buffers = parameters + _up(layout.parameter_bytes, PAGE_BYTES)
    starts = (2 * gradients, 2 * gradients + buffers)
    return ArenaMap((0, gradients), starts, parameters, mean_buffers, max(mean_buffers + buffers, PAGE_BYTES))


def parameter_arena_bytes(layout: Layout) -> tuple[int, int]:
    """The arena that all shards share: (offset of the averaged buffers behind the parameters, whole size)."""
    mean_buffers = _up(layout.parameter_bytes, PAGE_BYTES)
    return mean_buffers, max(mean_buffers + _up(layout.buffer_bytes, PAGE_BYTES), PAGE_BYTES)


def first_difference(ours: ModelSpec, theirs: ModelSpec) -> str | None:
    """What differs between two models, as the end of a sentence; None when nothing does."""
    for kind, mine, other in (("parameter", ours.parameters, theirs.parameters), ("buffer", ours.buffers, theirs.buffers)):
        for a, b in zip(mine, other, strict=False):
            if a != b:
                return f"{kind} {_in_words(a)} against {_in_words(b)}"
        if len(mine) != len(other):
            return f"{len(mine)} {kind}s against {len(other)}"
    if ours.optimizer != theirs.optimizer:
        return f"optimizer {ours.optimizer} against {theirs.optimizer}"
    if (ours.groups, ours.arguments) != (theirs.groups, theirs.arguments):
        return "the optimizer's settings"
    return None


def _in_words(spec: TensorSpec) -> str:
    return f"{spec.name} {list(spec.shape)} {spec.dtype} (group {spec.group})"
