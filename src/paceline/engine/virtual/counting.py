"""A shard that only counts, where the order of a run matters and its numbers do not."""
# ruff: noqa: ARG002 - the arguments are the protocol's

from __future__ import annotations

from paceline.messages import Member
from paceline.pace import Pace


class Counting:
    """A `roles.server.ShardStore` without numbers: `num_updates` is what it has applied; each one looks alike."""

    def __init__(self) -> None:
        self.num_updates = 0

    def attach(self, worker: int, incarnation: int, memory: object) -> None:
        """Nothing is mapped."""

    def detach(self, worker: int, incarnation: int) -> None:
        """Nothing was mapped."""

    def gather(self, member: Member) -> None:
        """Nothing is summed."""

    def reduce(self, members: tuple[Member, ...], scale: float) -> None:
        """Nothing is summed."""

    def square_norm(self) -> float:
        """As if the gradient had length 1."""
        return 1.0

    def moved(self) -> float:
        """As if the parameters had moved by 1."""
        return 1.0

    def apply(self, *, factor: float, lr_factor: float, hyper: bytes, absent: bytes, measure: bool) -> tuple[float, float, float] | None:
        """Count the update."""
        self.num_updates += 1
        return (1.0, 1.0, 1.0) if measure else None

    def set_pace(self, pace: Pace, *, ramp_updates: int) -> None:
        """No correction is made."""

    def keep(self) -> None:
        """Nothing is kept."""

    def restore(self) -> None:
        """Count it, which is a version too."""
        self.num_updates += 1

    def idle(self) -> bool:
        """Nothing can be done ahead."""
        return False

    def find_non_finite(self) -> str | None:
        """There is no number."""
        return None

    def copy_out(self, worker: int, incarnation: int, *, buffers: bool) -> None:
        """Nothing is copied."""

    def take_buffers(self, member: Member) -> None:
        """Nothing is averaged."""

    def save(self, *, optimizer: bool) -> bytes:
        """Nothing."""
        return b""

    def load(self, state: bytes | memoryview, *, parameters: bool, optimizer: bool) -> None:
        """Count it, which is a version too."""
        self.num_updates += 1
