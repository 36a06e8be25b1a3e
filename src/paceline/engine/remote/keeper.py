"""The coordinator's attachments where nobody shares its memory: the initial values come to it, and the last ones."""

from __future__ import annotations

import os

from paceline.engine.local.coordinator_main import Keeper
from paceline.engine.remote.parts import Parts
from paceline.messages import Address, Finished, Message, Seeded, Serve, Welcome
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import Send
from paceline.transport import memory


class RemoteKeeper(Keeper):
    """Its arena holds the first worker's initial values, which every process is given, and after the end the final ones."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: Parts | None = None

    def keep(self, message: Message, attachments: tuple[int, ...], sender: Address, role: Coordinator) -> None:
        """Take over the attachments of a message that arrived from `sender`."""
        match message:
            case Seeded():
                if self.arena is not None:
                    os.close(self.arena)
                self.arena, state = attachments[0], attachments[1:]
                if state:
                    super().keep(message, state, sender, role)
            case Finished() if self._parts is not None and self.arena is not None:
                self._put(self._parts.final(sender.id), attachments, self.arena)
            case _:
                super().keep(message, attachments, sender, role)

    def _put(self, places: list[slice], attachments: tuple[int, ...], arena: int) -> None:
        for place, fd in zip(places, attachments, strict=True):
            try:
                data = memory.read_all(fd, at_most=place.stop - place.start)
            finally:
                os.close(fd)
            with memory.map_shared(arena) as target:
                target[place] = data

    def attach(self, send: Send, role: Coordinator) -> Send:
        """The message with the attachments that belong to it; the first worker brings the values and needs none."""
        match send.message:
            case Welcome(first=True):
                return send
            case Serve(model=model, num_shards=num_shards):
                self._parts = Parts(model, num_shards)
            case _:
                pass
        return super().attach(send, role)
