"""What a virtual job needs of whoever runs it: a record, and somebody who knows what attachments are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from paceline.messages import Address, Message
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import Effect, Send

if TYPE_CHECKING:
    from paceline.engine.virtual.job import Job


class Books(Protocol):
    """Who writes down what the coordinator says."""

    def note(self, event: dict[str, object], now_s: float) -> None:
        """An event of the run."""
        ...

    def take(self, effect: Effect, job: Job) -> None:
        """Every other effect that is no message."""
        ...


class Luggage(Protocol):
    """Who knows what attachments are: packed by the sender, opened by servers, kept and added for the coordinator."""

    def pack(self, attachments: Sequence[object]) -> tuple[int, ...]:
        """What travels."""
        ...

    def open(self, message: Message, attachments: tuple[int, ...]) -> tuple[object, ...]:
        """What a server's role takes."""
        ...

    def keep(self, message: Message, attachments: tuple[int, ...], sender: Address, role: Coordinator) -> None:
        """The coordinator has got these."""
        ...

    def attach(self, send: Send, role: Coordinator) -> Send:
        """The coordinator's message with what belongs to it."""
        ...

    def drop(self, attachments: tuple[int, ...]) -> None:
        """Nobody gets these."""
        ...
