"""Handing a role's messages to a port: what a role calls an attachment becomes a memory file on the way."""

from __future__ import annotations

import os
from contextlib import ExitStack

from paceline.ports import Port
from paceline.roles.effects import Send
from paceline.transport import memory

MAX_STATE_BYTES = 1 << 40


def carry(port: Port, send: Send) -> None:
    """Send it; an attachment is a descriptor, which stays the caller's, or bytes. Raises PeerLostError."""
    if not send.attachments:
        port.send(send.to, send.message)
        return
    with ExitStack() as stack:
        descriptors: list[int] = []
        for attachment in send.attachments:
            if isinstance(attachment, int):
                descriptors.append(attachment)
            elif isinstance(attachment, bytes | bytearray | memoryview):
                fd = memory.create_from("state", attachment)
                stack.callback(os.close, fd)
                descriptors.append(fd)
            else:
                raise TypeError(f"an attachment is a descriptor or bytes, got {type(attachment).__name__}")
        port.send(send.to, send.message, descriptors)


def take_bytes(attachment: int) -> bytes:
    """What a received attachment holds; its descriptor is closed."""
    try:
        return memory.read_all(attachment, at_most=MAX_STATE_BYTES)
    finally:
        os.close(attachment)
