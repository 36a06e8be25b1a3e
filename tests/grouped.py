"""A test's world of workers that hold all shards themselves: their counting stores, and a group whose sums are not atomic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from paceline.messages import Fold, Form, Member, Message, ModelSpec
from paceline.roles.talk import Together
from stores import Content, CountingStore, Violation

if TYPE_CHECKING:
    from world import Process, World

GLITCH = 0.03
"""How often a group fails though none of it is lost."""


class WholeStore(CountingStore):
    """All shards as worker `process` holds them; a gradient that is summed is read by every shard at once."""

    needs_attached = False

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, 0)
        self.process = process

    def _change(self) -> None:
        if self.process.reading:
            raise Violation(f"the shards that worker {self.process.worker} holds are changed while it computes on them")

    def take_buffers(self, member: Member) -> None:
        """They came with the sum."""

    def _find(self, member: Member) -> Content:
        content = super()._find(member)
        self.world.read[content.name].update(range(len(self.world.servers)))
        return content


class CountingWhole:
    """What a worker of a test's world holds; see `roles.applier.Whole`."""

    def __init__(self, world: World, process: Process, model: ModelSpec) -> None:
        self.world, self.process, self.model = world, process, model
        self.shards: WholeStore | None = None

    def convene(self) -> tuple[str, int]:
        return "here", 1

    def store(self) -> WholeStore:
        assert self.shards is not None
        return self.shards

    def open(self, message: Message, attachments: tuple[int, ...]) -> tuple[object, ...]:
        return attachments

    def read(self, *, buffers: bool) -> None:
        pass

    def save(self, *, optimizer: bool) -> object:
        return self.store().save(optimizer=optimizer)

    def give(self) -> object:
        for other in self.world.processes.values():
            if other.alive and other.applier is not None and other.applier.is_active:
                theirs, ours = other.whole.store().history, self.store().history
                common = min(len(theirs), len(ours))
                if theirs[:common] != ours[:common]:
                    raise Violation(f"workers {other.worker} and {self.process.worker} of a group made different updates")
        return self.store().save(optimizer=True)

    def pulling(self) -> None:
        pass

    def pulled(self) -> None:
        pass

    def disband(self) -> None:
        pass

    def times(self) -> tuple[float, float]:
        return self.world.random.random(), self.world.random.random()

    def begin(self, parts: tuple[object, ...]) -> None:
        """The state that the servers gave."""
        if len(set(parts)) != 1:
            raise Violation(f"worker {self.process.worker} got shards of different states")
        self.shards = WholeStore(self.world, self.process)
        self.shards.load(cast(bytes, parts[0]), parameters=True, optimizer=True)


class Deed(NamedTuple):
    """Something that all of a group do together: those of it by incarnation, and who has come."""

    members: dict[int, int]
    came: dict[int, Process]
    fails: bool


class Groups:
    """The groups of a world, and what they are doing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._members: dict[int, dict[int, int]] = {}
        self._deeds: dict[tuple[int, int], Deed] = {}
        self._doing: dict[int, tuple[Deed, Together]] = {}
        self._generations: dict[int, int] = {}

    def told(self, worker: int, incarnation: int, form: Form) -> None:
        """A worker is told to be one of a group."""
        self._members.setdefault(form.generation, dict.fromkeys(form.workers, -1))[worker] = incarnation

    def come(self, process: Process, asked: Together) -> None:
        """A worker is there to do it."""
        what = asked.what
        if isinstance(what, Form):
            self._generations[process.worker] = what.generation
        generation = self._generations[process.worker]
        key = (generation, what.version if isinstance(what, Fold) else -1)
        deed = self._deeds.get(key)
        if deed is None:
            deed = self._deeds[key] = Deed(self._members[generation], {}, self.world.random.random() < GLITCH)
        deed.came[process.worker] = process
        self._doing[process.worker] = (deed, asked)

    def able(self) -> list[Process]:
        """Who may go on: all are there, or one of them never will be."""
        return [
            deed.came[worker]
            for worker, (deed, _) in self._doing.items()
            if deed.came[worker].alive and (len(deed.came) == len(deed.members) or self._is_spoiled(deed))
        ]

    def done(self, process: Process) -> str:
        """How it ended for one of them: when it fails, it may be well for some and not for others."""
        deed, asked = self._doing.pop(process.worker)
        fails = deed.fails or self._is_spoiled(deed)
        if fails and (len(deed.came) < len(deed.members) or self.world.random.random() < 0.5):
            return "somebody is gone"
        if isinstance(asked.what, Form) and asked.what.fresh:
            process.whole.begin(asked.parts)
        return ""

    def gone(self, process: Process) -> None:
        """A worker is dead."""
        self._doing.pop(process.worker, None)

    def _is_spoiled(self, deed: Deed) -> bool:
        processes = self.world.processes
        return any(not processes[one].alive or processes[one].role.incarnation != was for one, was in deed.members.items())
