"""What servers of a test's world keep instead of tensors: which gradients were read, summed and applied, and when.

They notice what must never happen to shared memory: a gradient read after it was overwritten, a shard changed while
a worker computes on it, parameters rewritten under a worker's feet.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from paceline.messages import Member
from paceline.pace import Correction, Pace

if TYPE_CHECKING:
    from world import World

Name = tuple[int, int, int]
"""A gradient: worker, incarnation, step."""


class Violation(AssertionError):
    """A law was broken."""


class Content(NamedTuple):
    """What lies in a gradient buffer; `ranges` of samples where entries are cut, `versions` are what it was computed on."""

    name: Name
    epoch: int
    positions: tuple[int, ...]
    samples: int
    ranges: tuple[tuple[int, int], ...] = ()
    versions: tuple[int, ...] = ()


class Arena:
    """A worker's two gradient buffers, readable by servers also after its death;"""

    def __init__(self) -> None:
        self.buffers: list[Content | None] = [None, None]


def name_of(member: Member) -> Name:
    """A member's name."""
    return (member.worker, member.incarnation, member.step)


class CountingStore:
    """A shard that counts: `history` has, per version, each gradient's effective weight and the learning rate's factor.

    `paces` are the changes of pace, `restores` the returns, as (version made, version gone back to).
    """

    needs_attached = True

    def __init__(self, world: World, shard: int) -> None:
        self.world, self.shard = world, shard
        self.attached: set[tuple[int, int]] = set()
        self.gathered: list[tuple[Name, float]] = []
        self.reduced: list[tuple[Name, float]] = []
        self.history: list[tuple[tuple[tuple[Name, float], ...], float]] = []
        self.paces: list[tuple[int, Pace]] = []
        self.correction = Correction()
        self.copied: dict[tuple[int, int], int] = {}
        self.kept: int | None = None
        self.restores: list[tuple[int, int]] = []

    def attach(self, worker: int, incarnation: int, memory: object) -> None:
        self.attached.add((worker, incarnation))

    def detach(self, worker: int, incarnation: int) -> None:
        self.attached.discard((worker, incarnation))

    def gather(self, member: Member) -> None:
        self.gathered.append((self._read(member), member.weight))

    def reduce(self, members: tuple[Member, ...], scale: float) -> None:
        gathered, self.gathered = self.gathered, []
        named = [(name_of(member), member.weight) for member in members if member.gathered]
        if named != gathered:
            raise Violation(f"shard {self.shard} gathered {gathered}, the fold names {named}")
        fresh = [(self._read(member), member.weight) for member in members if not member.gathered]
        self.reduced = [(name, weight * scale) for name, weight in gathered + fresh]

    def square_norm(self) -> float:
        return 4.0

    def moved(self) -> float:
        return 4.0

    def apply(self, *, factor: float, lr_factor: float, hyper: bytes, absent: bytes, measure: bool) -> tuple[float, float, float] | None:
        self._change()
        self.history.append((tuple((name, weight * factor) for name, weight in self.reduced), lr_factor))
        return (4.0, 1e4, 1e-2) if measure else None

    def set_pace(self, pace: Pace, *, ramp_updates: int) -> None:
        if self.gathered:
            raise Violation(f"shard {self.shard} changes its pace while {self.gathered} are pending")
        self.paces.append((len(self.history), pace))
        self.begin(pace)

    def begin(self, pace: Pace) -> None:
        self.correction = pace.correction

    def keep(self) -> None:
        if self.gathered:
            raise Violation(f"shard {self.shard} keeps its state while {self.gathered} are pending")
        self.kept = len(self.history)

    def restore(self) -> None:
        self._change()
        if self.kept is None:
            raise Violation(f"shard {self.shard} goes back to what it never kept")
        self.gathered = []
        self.restores.append((len(self.history) + 1, self.kept))
        self.history.append(((), 1.0))

    def idle(self) -> bool:
        return False

    def _change(self) -> None:
        for process in self.world.processes.values():
            if process.reads_in_place:
                raise Violation(f"shard {self.shard} is changed while worker {process.worker} computes on it")

    def find_non_finite(self) -> str | None:
        return None

    def copy_out(self, worker: int, incarnation: int, *, buffers: bool) -> None:
        process = self.world.processes.get(worker)
        if process is not None and process.role.incarnation == incarnation and process.reading:
            raise Violation(f"shard {self.shard} writes into worker {worker}'s parameters while it computes")

        self.copied[worker, incarnation] = len(self.history)

    def take_buffers(self, member: Member) -> None:
        self._find(member)

    def save(self, *, optimizer: bool) -> bytes:
        return repr(self.history).encode()

    def load(self, state: bytes | memoryview, *, parameters: bool, optimizer: bool) -> None:
        """A state that a script loads is a version of its own; one that was saved goes on where that was."""
        if state == b"state":
            self.history.append(((), 1.0))
        else:
            self._change()
            self.history = ast.literal_eval(bytes(state).decode())

    def _read(self, member: Member) -> Name:
        """Read a gradient, with what its worker had read if it is to be corrected."""
        content = self._find(member)
        if self.correction.rule != "none" and member.staleness:
            copied = self.copied.get((member.worker, member.incarnation))
            if copied != content.versions[self.shard]:
                raise Violation(f"shard {self.shard} corrects {content} by what was copied at version {copied}")
        return content.name

    def _find(self, member: Member) -> Content:
        owner = (member.worker, member.incarnation)
        content = self.world.arenas[owner].buffers[member.buffer]
        if self.needs_attached and owner not in self.attached:
            raise Violation(f"shard {self.shard} reads the memory of {owner}, which it let go")
        if content is None or content.name != name_of(member):
            raise Violation(f"shard {self.shard} reads {name_of(member)} and finds {content}")
        self.world.read.setdefault(content.name, set()).add(self.shard)
        return content
