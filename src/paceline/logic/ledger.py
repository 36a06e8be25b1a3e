"""The sample ledger of one epoch: which entries of the batch list are free, held, started or settled, and whose.

Every entry is in exactly one place, so "the epoch is over" is a count that reaches zero. Leases hand out entries
in order; what comes back goes to the front, unchanged. It refuses to settle an entry twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum

from paceline.logic.stretches import Stretches


class Place(Enum):
    """Where an entry is; SKIPPED and FOLDED are final unless they are undone."""

    FREE = "free"
    HELD = "held"
    STARTED = "started"
    PENDING = "pending"
    FOLDED = "folded"
    SKIPPED = "skipped"


# a member looked up on its Enum takes ten times as long (Python 3.11), and every step does so many times
FREE, HELD, STARTED, PENDING, FOLDED, SKIPPED = Place


class Ledger:
    """Entries 0..len(sizes)-1 with their numbers of samples; of `num_samples` so many are `folded` or `skipped`.

    `owners` gives each entry to one worker (static leases). With `cut`, `sizes` is one list of samples that
    `lease` cuts into entries: each stretch of `cut` samples is divided among the workers that have entered, by
    their parts.

    >>> ledger = Ledger((4, 4, 2))
    >>> ledger.lease(7, 2), ledger.start(7), ledger.num_free
    ([0, 1], 0, 1)
    """

    def __init__(self, sizes: Sequence[int], *, owners: Sequence[int] = (), cut: int = 0) -> None:
        self.sizes = list(sizes) if not cut else []
        self.places = [FREE] * len(self.sizes)
        self.cuts: list[tuple[int, int]] = []
        self.held: dict[int, deque[int]] = {}
        self.num_samples = sum(sizes)
        self.folded = self.skipped = 0
        self._stretches = Stretches(self.num_samples, cut) if cut else None
        self._parts: Mapping[int, float] = {}
        self._sharing: set[int] = set()
        self._free: deque[int] = deque() if owners else deque(range(len(self.sizes)))
        self._owners = tuple(owners)
        self._owned: dict[int, deque[int]] = {}
        for position, owner in enumerate(owners):
            self._owned.setdefault(owner, deque()).append(position)
        self._num_owned = len(owners)
        self._unsettled = len(self.sizes)

    @property
    def is_static(self) -> bool:
        """Whether entries have owners."""
        return bool(self._owners)

    @property
    def is_cut(self) -> bool:
        """Whether entries are cut when they are leased."""
        return self._stretches is not None

    @property
    def owners(self) -> set[int]:
        """The workers that entries were given to at the start."""
        return set(self._owners)

    @property
    def num_free(self) -> int:
        """Entries that nobody holds; samples not cut yet count as about as many entries as they will be."""
        to_cut = self._stretches.num_pieces if self._stretches else 0
        return len(self._free) + self._num_owned + to_cut

    @property
    def done(self) -> bool:
        """Whether every sample is folded or skipped."""
        return not self._unsettled and not (self._stretches and self._stretches.num_uncut)

    def has_for(self, worker: int, *, greedy: bool = False) -> bool:
        """Whether `worker` could be leased an entry now; see `lease`."""
        if self._free or self._owned.get(worker):
            return True
        return self._stretches is not None and self._stretches.has_for(worker, greedy=greedy)

    def holds(self, worker: int) -> bool:
        """Whether `worker` has unstarted entries: leased to it, or its own by a fixed split."""
        return bool(self.held.get(worker) or self._owned.get(worker))

    def share(self, num_workers: int) -> int:
        """How many entries a lease should have: a few, fewer towards the end."""
        return max(1, min(4, self.num_free // (2 * num_workers)))

    # --- who gets what part -------------------------------------------------------------------------------

    def enter(self, *workers: int) -> None:
        """These have a part of what is cut from now on; only those who entered are leased what is cut."""
        if self._stretches is not None and not self._sharing.issuperset(workers):
            self._sharing.update(workers)
            self._divide(self._stretches)

    def set_parts(self, parts: Mapping[int, float]) -> None:
        """What is cut from now on is in proportion to `parts`; a worker without one gets the mean of the others'."""
        self._parts = dict(parts)
        if self._stretches is not None:
            self._divide(self._stretches)

    def disown(self, worker: int) -> None:
        """A dead worker's fixed share and uncut samples are open to the survivors, behind what else is free."""
        own = self._owned.pop(worker, deque())
        self._num_owned -= len(own)
        self._free.extend(own)
        if self._stretches is not None and worker in self._sharing:
            self._sharing.remove(worker)
            self._divide(self._stretches)

    def _divide(self, stretches: Stretches) -> None:
        known = [part for worker, part in self._parts.items() if worker in self._sharing]
        mean = sum(known) / len(known) if known else 1.0
        stretches.divide({worker: self._parts.get(worker, mean) for worker in self._sharing})

    # --- from place to place ------------------------------------------------------------------------------

    def lease(self, worker: int, count: int, *, greedy: bool = False) -> list[int]:
        """Up to `count` entries for `worker`, in order: its own ones, else returned and then new ones.

        What is cut is sized for the worker, one piece of each stretch; `greedy`: also of what others have not come for.
        """
        leased: list[int] = []
        own = self._owned.get(worker)
        while len(leased) < count:
            if own:
                position = own.popleft()
                self._num_owned -= 1
            elif self._free:
                position = self._free.popleft()
            elif (cut := self._cut_next(worker, greedy=greedy)) is not None:
                position = cut
            else:
                break
            self.places[position] = HELD
            leased.append(position)
        if leased:
            self.held.setdefault(worker, deque()).extend(leased)
        return leased

    def start(self, worker: int) -> int:
        """The next entry that `worker` holds is being computed on."""
        position = self.held[worker].popleft()
        self.places[position] = STARTED
        return position

    def pend(self, positions: Sequence[int]) -> None:
        """The gradient of started entries was accepted."""
        for position in positions:
            self._move(position, STARTED, PENDING)

    def unpend(self, positions: Sequence[int]) -> None:
        """The gradient of pending entries will be in no update."""
        for position in positions:
            self._move(position, PENDING, STARTED)

    def fold(self, positions: Sequence[int]) -> None:
        """The gradient of pending entries is in an update."""
        for position in positions:
            self._move(position, PENDING, FOLDED)
            self.folded += self.sizes[position]
            self._unsettled -= 1

    def skip(self, positions: Sequence[int]) -> None:
        """Entries that nobody will compute on again."""
        for position in positions:
            self._move(position, STARTED, SKIPPED)
            self.skipped += self.sizes[position]
            self._unsettled -= 1

    def undo(self, positions: Sequence[int]) -> None:
        """Folded entries whose update was taken back go to the front, in their order, to be computed again."""
        for position in positions:
            self._move(position, FOLDED, FREE)
            self.folded -= self.sizes[position]
            self._unsettled += 1
        self._return(positions)

    def unskip(self, positions: Sequence[int]) -> None:
        """Skipped entries go to the front, in their order, to be computed after all."""
        for position in positions:
            self._move(position, SKIPPED, FREE)
            self.skipped -= self.sizes[position]
            self._unsettled += 1
        self._return(positions)

    def give_back(self, started: Sequence[int]) -> None:
        """Started entries that were not folded go to the front, in their order: for anyone, or for their owner."""
        for position in started:
            self._move(position, STARTED, FREE)
        self._return(started)

    def release(self, worker: int) -> list[int]:
        """What `worker` holds unstarted goes back; returns it."""
        held = list(self.held.pop(worker, ()))
        for position in held:
            self._move(position, HELD, FREE)
        self._return(held)
        return held

    def recall(self, victim: int, count: int) -> list[int]:
        """Take the last `count` unstarted entries back from `victim`, to be leased again."""
        held = self.held.get(victim, deque())
        taken = [held.pop() for _ in range(min(count, len(held)))][::-1]
        for position in taken:
            self._move(position, HELD, FREE)
        self._return(taken)
        return taken

    def close(self) -> dict[int, list[int]]:
        """Give up all that nobody computes on or has pushed; returns what each worker held of it."""
        taken = {worker: list(held) for worker, held in self.held.items() if held}
        for position, place in enumerate(self.places):
            if place in (FREE, HELD):
                self.places[position] = SKIPPED
                self.skipped += self.sizes[position]
                self._unsettled -= 1
        if self._stretches is not None:
            self.skipped += self._stretches.close()
        self._num_owned = 0
        for queue in (self._free, self._owned, self.held):
            queue.clear()
        return taken

    def _return(self, positions: Sequence[int]) -> None:
        for position in reversed(positions):
            own = self._owned.get(self._owners[position]) if self._owners else None
            if own is None:
                self._free.appendleft(position)
            else:
                own.appendleft(position)
                self._num_owned += 1

    def _cut_next(self, worker: int, *, greedy: bool) -> int | None:
        piece = self._stretches.take(worker, greedy=greedy) if self._stretches else None
        if piece is None:
            return None
        self.cuts.append(piece)
        self.sizes.append(piece[1] - piece[0])
        self.places.append(FREE)
        self._unsettled += 1
        return len(self.sizes) - 1

    def _move(self, position: int, was: Place, now: Place) -> None:
        if self.places[position] is not was:
            raise AssertionError(f"entry {position} is {self.places[position].value}, not {was.value}")
        self.places[position] = now
