"""How a shard is cut up for work: windows that are reduced and stepped one after another, pieces, and parts.

A window's gradient fits the cache, so that it is still there when the optimizer reads it. Pieces are what one pass
of a sum touches. Parts are the tensors that the optimizer knows. All cuts are at multiples of 64 bytes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from paceline.logic.partition import ITEM_BYTES, Layout, Run, Slot, runs_of
from paceline.tensors.memory import Flat, typed

PIECE_ELEMENTS = 1 << 17
"""What is copied or summed in one pass and read again while the cache still holds it; workers and shards alike."""
WINDOW_BYTES = 1 << 22
BUCKET_ELEMENTS = 6 << 20
"""What a group sums at once: with more members small ones cost more processor time than they save by overlapping."""


class Spanning(Protocol):
    """What has bytes [start, stop) of the flat memory."""

    @property
    def start(self) -> int:
        """The first of them."""
        ...

    @property
    def stop(self) -> int:
        """The one behind the last of them."""
        ...


S = TypeVar("S", bound=Spanning)


class Piece(NamedTuple):
    """Bytes [start, stop) of the flat memory; elements from `first` on, counted over the shard."""

    number: int
    dtype: str
    start: int
    stop: int
    first: int
    num_elements: int


class Bucket(NamedTuple):
    """Neighbouring pieces that are summed together with those of others: bytes [start, stop) of the flat memory."""

    pieces: list[Piece]
    start: int
    stop: int
    first: int
    num_elements: int


class Part:
    """One tensor that the optimizer knows: its memory, place and slots. A part is born again, smaller, when it is split."""

    def __init__(self, run: Run, first: int, slots: Sequence[Slot], memory: Flat, shape: tuple[int, ...] | None = None) -> None:
        self.run = run
        self.first = first
        self.slots = slots
        flat = typed(memory, run.start, run.stop, run.dtype)
        self.num_elements = flat.numel()
        self.parameter = Parameter(flat if shape is None else flat.view(shape))

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.run.dtype]

    def overlap(self, slot: Slot) -> tuple[int, int]:
        """The elements [from, to) of this part that belong to `slot`, without its padding."""
        low, high = max(slot.start, self.run.start), min(slot.stop, self.run.stop)
        return (low - self.run.start) // self.item_bytes, (high - self.run.start) // self.item_bytes

    def split(self, borders: Sequence[int], memory: Flat) -> list[Part]:
        """The parts between the byte positions `borders`, each of which is a slot's start within this one."""
        edges = [self.run.start, *borders, self.run.stop]
        return [
            Part(
                self.run._replace(start=low, stop=high),
                self.first + (low - self.run.start) // self.item_bytes,
                [slot for slot in self.slots if slot.start < high and slot.stop > low],
                memory,
            )
            for low, high in pairwise(edges)
        ]


class Window:
    """Neighbouring parts that are summed and stepped together: bytes [start, stop) of the flat memory, seen as `values`.

    `version` counts the splits of its parts.
    """

    def __init__(self, index: int, parts: list[Part], pieces: list[Piece], values: list[Tensor]) -> None:
        self.index = index
        self.parts = parts
        self.pieces = pieces
        self.version = 0
        self.first = pieces[0].first
        self.num_elements = pieces[-1].first + pieces[-1].num_elements - self.first
        self.start, self.stop = pieces[0].start, pieces[-1].stop
        self.values = values

    def seems_finite(self) -> bool:
        """False when a value is not finite; also for huge values, and for padding, so a look at each parameter decides."""
        return all(math.isfinite(values.sum()) for values in self.values)

    def non_finite(self, memory: Flat) -> str | None:
        """The name of a parameter with a value that is not finite; padding belongs to nobody."""
        for part in self.parts:
            for slot in part.slots:
                values = typed(memory, max(slot.start, part.run.start), min(slot.stop, part.run.stop), slot.spec.dtype)
                if not bool(torch.isfinite(values).all()):
                    return slot.spec.name
        return None

    def replace(self, part: Part, by: list[Part]) -> None:
        """Put smaller parts in the place of one."""
        at = self.parts.index(part)
        self.parts[at : at + 1] = by
        self.version += 1


def cut(layout: Layout, memory: Flat, borders: tuple[int, int], *, elementwise: bool, window_bytes: int) -> list[Window]:
    """The windows of the shard between `borders`, over the parameter arena `memory`.

    An optimizer that is not elementwise may look at all its tensors at once: it gets one window of whole parameters.
    """
    start, stop = borders
    slots = [slot for slot in layout.trained if slot.num_elements]
    windows: list[Window] = []
    first = num_pieces = 0
    for chunk in _chunks(runs_of(layout, start, stop, elementwise=True), window_bytes if elementwise else stop - start):
        pieces = _pieces(chunk, first, num_pieces)
        runs = chunk if elementwise else runs_of(layout, start, stop, elementwise=False)
        values = [typed(memory, run.start, run.stop, run.dtype) for run in chunk]
        windows.append(Window(len(windows), _parts(runs, pieces, slots, memory, whole=not elementwise), pieces, values))
        first = pieces[-1].first + pieces[-1].num_elements
        num_pieces += len(pieces)
    return windows


def buckets_of(windows: Sequence[Window], most_elements: int) -> list[Bucket]:
    """All pieces in buckets of about `most_elements` of one group, in the order in which backward passes are likely to fill them.

    These come to the first parameter of the model last, so a bucket is full when its first parameter is there.
    """
    slots = sorted({slot for window in windows for part in window.parts for slot in part.slots}, key=attrgetter("start"))
    buckets: list[list[Piece]] = []
    room, group = 0, -1
    for piece in (piece for window in windows for piece in window.pieces):
        of = between(slots, piece.start, piece.stop)[0].spec.group
        if room <= 0 or of != group:
            buckets.append([])
            room, group = most_elements, of
        buckets[-1].append(piece)
        room -= piece.num_elements
    buckets.sort(key=lambda pieces: min(slot.index for slot in between(slots, pieces[0].start, pieces[-1].stop)), reverse=True)
    return [
        Bucket(pieces, pieces[0].start, pieces[-1].stop, pieces[0].first, sum(piece.num_elements for piece in pieces)) for pieces in buckets
    ]


def between(slots: Sequence[S], start: int, stop: int) -> Sequence[S]:
    """Those of `slots`, which are in order, that have some of the bytes [start, stop)."""
    return slots[bisect_right(slots, start, key=attrgetter("stop")) : bisect_left(slots, stop, key=attrgetter("start"))]


def _chunks(runs: Sequence[Run], size_bytes: int) -> list[list[Run]]:
    chunks: list[list[Run]] = []
    room = 0
    for run in runs:
        at = run.start
        while at < run.stop:
            if not room:
                chunks.append([])
                room = size_bytes
            stop = min(run.stop, at + room)
            chunks[-1].append(run._replace(start=at, stop=stop))
            room -= stop - at
            at = stop
    return chunks


def _pieces(runs: Sequence[Run], first: int, number: int) -> list[Piece]:
    pieces: list[Piece] = []
    for run in runs:
        size = PIECE_ELEMENTS * ITEM_BYTES[run.dtype]
        for start in range(run.start, run.stop, size):
            stop = min(start + size, run.stop)
            num_elements = (stop - start) // ITEM_BYTES[run.dtype]
            pieces.append(Piece(number, run.dtype, start, stop, first, num_elements))
            first += num_elements
            number += 1
    return pieces


def _parts(runs: Sequence[Run], pieces: Sequence[Piece], slots: Sequence[Slot], memory: Flat, *, whole: bool) -> list[Part]:
    parts: list[Part] = []
    for run in runs:
        piece = pieces[bisect_right(pieces, run.start, key=attrgetter("start")) - 1]
        inside = between(slots, run.start, run.stop)
        first = piece.first + (run.start - piece.start) // ITEM_BYTES[run.dtype]
        parts.append(Part(run, first, inside, memory, inside[0].spec.shape if whole else None))
    return parts
