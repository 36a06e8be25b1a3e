"""What a checkup has found, as values that can be written down: hosts, ways between them, and the whole."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from paceline.plan.doctor.facts import Facts
from paceline.plan.machine import Machine


class Door(msgspec.Struct, frozen=True):
    """Where a host can be visited at one of its addresses: a port as a job has it, and a plain one that moves only zeros."""

    interface: str
    address: str
    wire_port: int
    plain_port: int


class SampleTime(NamedTuple):
    """How long a script computes on a sample, in seconds: the median of its steps, and the quartiles around it."""

    median_s: float
    low_s: float
    high_s: float


class Card(msgspec.Struct, frozen=True):
    """What a process says of itself to the others; only the first of each host has doors, and has measured its machine.

    `sample` is there if a script was timed. Two hosts with the same key have the same `fingerprint`, which is of this checkup
    only; "" without a key.
    """

    rank: int = 0
    local_rank: int = 0
    facts: Facts = Facts()
    fingerprint: str = ""
    doors: tuple[Door, ...] = ()
    machine: Machine | None = None
    sample: SampleTime | None = None


class Way(msgspec.Struct, frozen=True):
    """From a visitor to one address of another host. `error`: why it is not reached there, and then nothing is measured.

    `ahead_s` is how far the other clock is ahead of the visitor's; `bytes_per_s` what one plain connection brings there.
    """

    interface: str
    address: str
    error: str = ""
    round_trip_s: float = 0.0
    ahead_s: float = 0.0
    ahead_error_s: float = 0.0
    bytes_per_s: float = 0.0


class Visit(msgspec.Struct, frozen=True):
    """What one host has found at another (both by their first ranks), at each of its addresses and, more closely, at `address`.

    That is the one that a job would use, or the fastest where that is not reached. Bytes a second of two plain connections,
    and of one and two with the job's wire.
    """

    visitor: int
    host: int
    ways: tuple[Way, ...] = ()
    address: str = ""
    two_bytes_per_s: float = 0.0
    wire_bytes_per_s: float = 0.0
    wire_two_bytes_per_s: float = 0.0
    error: str = ""

    @property
    def way(self) -> Way | None:
        """The way that was measured more closely."""
        return next((way for way in self.ways if way.address == self.address and not way.error), None)


class Host(msgspec.Struct, frozen=True):
    """One host: its first rank, how many processes it has, and whether it has rank 0's key (or none, like rank 0).

    `lost` says how it fell silent during the checkup; `sample` is as on its card.
    """

    rank: int
    num_processes: int
    facts: Facts
    has_same_key: bool = True
    machine: Machine | None = None
    lost: str = ""
    sample: SampleTime | None = None

    def named(self, hosts: tuple[Host, ...]) -> str:
        """Its name, with its rank where it is not the only one of that name.

        >>> one, other = (Host(rank, 1, Facts(name="a")) for rank in (0, 4))
        >>> one.named((one,)), other.named((one, other))
        ('a', 'a (rank 4)')
        """
        is_alone = sum(host.facts.name == self.facts.name for host in hosts) == 1
        return self.facts.name if is_alone else f"{self.facts.name} (rank {self.rank})"


Gravity = Literal["fails", "slow", "note"]


class Advice(msgspec.Struct, frozen=True):
    """A sentence; `fails`: something will not work, `slow`: it works less well than it could, `note`: good to know."""

    gravity: Gravity
    sentence: str


class Report(msgspec.Struct, frozen=True):
    """The whole. `because` says what was looked at, `missing` are ranks that did not come."""

    because: str
    hosts: tuple[Host, ...]
    visits: tuple[Visit, ...] = ()
    missing: tuple[int, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether nothing of what was found keeps a job from running."""
        return not any(one.gravity == "fails" for one in self.advice)
