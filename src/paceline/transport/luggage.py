"""Attachments across hosts: the bytes of a memory file travel ahead of their message and become one of the receiver's own.

Within a message the same file comes as one file again. Names do not travel, and sizes are capped before memory is made.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence

from paceline.errors import ProtocolError
from paceline.transport import memory
from paceline.transport.connection import MAX_ATTACHMENTS, close_all
from paceline.transport.stream import Outgoing
from paceline.transport.wire import MAX_MEMORY_BYTES, MOST_BYTES, Frame, Kind

_SIZE = struct.Struct("<Q")
_PART_BYTES = MOST_BYTES[Kind.PART]


def frames_of(attachments: Sequence[int], generation: int) -> list[Outgoing]:
    """The frames that carry what these memory files hold when they leave."""
    frames: list[Outgoing] = []
    known: dict[tuple[int, int], int] = {}
    for number, fd in enumerate(attachments):
        status = os.fstat(fd)
        first = known.setdefault((status.st_dev, status.st_ino), number)
        if first != number:
            frames.append(Outgoing(Kind.AGAIN, generation, bytes([first])))
            continue
        size = memory.size_of(fd)
        frames.append(Outgoing(Kind.MEMORY, generation, _SIZE.pack(size)))
        # the map outlives the descriptor, which its owner may close at once; nothing of no bytes can be mapped
        view = memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ) if size else b"")
        frames += [Outgoing(Kind.PART, generation, view[start : start + _PART_BYTES]) for start in range(0, size, _PART_BYTES)]
    return frames


class Luggage:
    """The attachments that have come for the next message of one peer."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._target: mmap.mmap | None = None
        self._filled_bytes = 0

    def add(self, frame: Frame, payload: bytes) -> None:
        """Take in a MEMORY, PART or AGAIN frame. Raises ProtocolError when it is out of place."""
        if frame.kind is Kind.PART:
            self._fill(payload)
            return
        if self._target is not None or len(self._descriptors) >= MAX_ATTACHMENTS:
            raise ProtocolError(f"an attachment began while another was not complete, or after {MAX_ATTACHMENTS}")
        if frame.kind is Kind.AGAIN:
            if len(payload) != 1 or payload[0] >= len(self._descriptors):
                raise ProtocolError("an attachment repeats one that never came")
            self._descriptors.append(os.dup(self._descriptors[payload[0]]))
            return
        if len(payload) != _SIZE.size:
            raise ProtocolError(f"an attachment states its size in {len(payload)} bytes")
        self._begin(_SIZE.unpack(payload)[0])

    def _begin(self, size: int) -> None:
        if size > MAX_MEMORY_BYTES:
            raise ProtocolError(f"an attachment claims {size} bytes, at most {MAX_MEMORY_BYTES} are taken")
        if size == 0:
            self._descriptors.append(memory.create_from("attachment", b""))
            return
        # its pages are made as the bytes come: a claim alone costs none
        self._descriptors.append(memory.create("attachment", size))
        self._target, self._filled_bytes = memory.map_shared(self._descriptors[-1]), 0

    def _fill(self, payload: bytes) -> None:
        target = self._target
        if target is None or not payload or self._filled_bytes + len(payload) > len(target):
            raise ProtocolError("an attachment has more bytes than it claimed")
        target[self._filled_bytes : self._filled_bytes + len(payload)] = payload
        self._filled_bytes += len(payload)
        if self._filled_bytes == len(target):
            target.close()
            self._target = None

    def hand_over(self) -> tuple[int, ...]:
        """The descriptors of a message that has come, which belong to the receiver now."""
        if self._target is not None:
            raise ProtocolError("a message came before its attachment was complete")
        descriptors, self._descriptors = tuple(self._descriptors), []
        return descriptors

    def drop(self) -> None:
        """Close what no message will take."""
        close_all(self._descriptors)
        self._descriptors, self._target = [], None
