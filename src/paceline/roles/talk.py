"""What a worker's conversations are made of: what they wait for, and what they carry."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, Protocol, TypeVar

from paceline.messages import Fold, Form
from paceline.ports import Delivery
from paceline.roles.effects import Send

T = TypeVar("T")


class Receive(NamedTuple):
    """Wait for the next delivery; `why` ends the sentence "waited for ... to".

    `is_open`: entries of the order may come in between, and are applied at once; else they wait for the next one that is.
    """

    why: str
    is_open: bool = True


class Together(NamedTuple):
    """Meet the group that `what` forms (its state is in `parts` when that is fresh), or sum its gradients for that update.

    Answered by why it could not be done, empty when it was.
    """

    what: Form | Fold
    parts: tuple[object, ...] = ()


Talk = Generator[Send | Receive, Delivery, T]


class Leased(NamedTuple):
    """An entry of the epoch's batch list that is this worker's; `cut` is its sample range when entries are cut."""

    position: int
    cut: tuple[int, int] | None


class Gradient(NamedTuple):
    """What `opt.step()` says about its gradient; see `messages.Ready`."""

    samples: int
    norm: float
    absent: bytes = b""
    hyper: bytes = b""
    clip: float = 0.0
    buffer_samples: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0
    pulled_bytes: int = 0
    exchange_s: float = 0.0


class Holder(Protocol):
    """All shards, held by the worker itself while `is_active`."""

    @property
    def is_active(self) -> bool:
        """Whether the order comes to this worker."""
        ...

    @property
    def version(self) -> int:
        """The update that the shards are at."""
        ...

    def read(self, *, buffers: bool) -> None:
        """Bring the averaged buffers, if asked, to where the worker reads them; the parameters are in place."""
        ...

    def save(self, *, optimizer: bool) -> object:
        """The state of all shards, as a server's part of a snapshot."""
        ...
