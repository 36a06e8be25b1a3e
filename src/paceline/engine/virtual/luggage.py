"""Attachments on the virtual engine: memory files, as between processes, so that sessions and shards find what they know."""

from __future__ import annotations

import os
from collections.abc import Sequence

from paceline.engine.local.coordinator_main import Keeper
from paceline.engine.local.serving import opened
from paceline.messages import Address, Message
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import Send
from paceline.transport import memory


class MemoryFiles:
    """A `job.Luggage` of descriptors; what travels is a duplicate, which belongs to whoever it arrives at."""

    def __init__(self) -> None:
        self.keeper = Keeper()

    def pack(self, attachments: Sequence[object]) -> tuple[int, ...]:
        """Descriptors are duplicated, bytes become a memory file."""
        packed: list[int] = []
        for attachment in attachments:
            if isinstance(attachment, int):
                packed.append(os.dup(attachment))
            else:
                assert isinstance(attachment, bytes | bytearray | memoryview)
                packed.append(memory.create_from("state", attachment))
        return tuple(packed)

    def open(self, message: Message, attachments: tuple[int, ...]) -> tuple[object, ...]:
        """What a server's store takes."""
        return opened(message, attachments)

    def keep(self, message: Message, attachments: tuple[int, ...], sender: Address, role: Coordinator) -> None:
        """For whoever needs it later."""
        self.keeper.keep(message, attachments, sender, role)

    def attach(self, send: Send, role: Coordinator) -> Send:
        """The message with what was kept for it."""
        return self.keeper.attach(send, role)

    def drop(self, attachments: tuple[int, ...]) -> None:
        """Close them."""
        for fd in attachments:
            os.close(fd)
