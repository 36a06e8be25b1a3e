"""The ledger: every entry is in exactly one place, whatever is leased, recalled, refused or lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.logic.ledger import Ledger, Place

WORKERS = range(3)
worker_ids = st.sampled_from(WORKERS)
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=15)


class Work(RuleBasedStateMachine):
    """Workers lease, start, push, are refused, rest and die at random; parts change and updates are taken back."""

    @initialize(sizes=SIZES, kind=st.sampled_from(("exact", "static", "cut", "cut")), cut=st.integers(1, 9))
    def begin(self, sizes, kind, cut):
        owners = [i % len(WORKERS) for i in range(len(sizes))] if kind == "static" else ()
        self.cut = cut if kind == "cut" else 0
        self.ledger = Ledger(sizes, owners=owners, cut=self.cut)
        self.total = sum(sizes)
        self.held: dict[int, list[int]] = {worker: [] for worker in WORKERS}
        self.started: dict[int, list[int]] = {worker: [] for worker in WORKERS}
        self.pending: list[int] = []
        self.folded: list[int] = []
        self.skipped: list[int] = []
        self.given_up = False
        self.ledger.enter(*WORKERS)

    @rule(worker=worker_ids, count=st.integers(1, 4), greedy=st.booleans())
    def lease(self, worker, count, greedy):
        self.ledger.enter(worker)
        had = self.ledger.has_for(worker, greedy=greedy)
        leased = self.ledger.lease(worker, count, greedy=greedy)
        assert had if leased else not (had and (greedy or not self.cut))
        self.held[worker] += leased

    @rule(parts=st.dictionaries(worker_ids, st.floats(0.01, 5.0)))
    def set_parts(self, parts):
        self.ledger.set_parts(parts)

    @rule(data=st.data())
    def undo(self, data):
        """Those of the folded ones that a Restore takes back are leased first, in their order."""
        positions = data.draw(st.lists(st.sampled_from(self.folded), unique=True)) if self.folded else []
        before = self.ledger.folded
        self.ledger.undo(positions)
        assert self.ledger.folded == before - sum(self.ledger.sizes[position] for position in positions)
        self.folded = [position for position in self.folded if position not in positions]
        if positions and not self.ledger.is_static:
            self.lease(0, 1, False)
            assert self.held[0][-1] == positions[0]

    @precondition(lambda self: not self.given_up)
    @rule(likely=st.integers(0, 9))
    def close(self, likely):
        if likely:
            return
        given_up = self.ledger.num_samples - sum(self.ledger.sizes)
        free = [position for position, place in enumerate(self.ledger.places) if place is Place.FREE]
        before = self.ledger.skipped
        assert self.ledger.close() == {worker: held for worker, held in self.held.items() if held}
        lost = free + [position for held in self.held.values() for position in held]
        assert self.ledger.skipped == before + given_up + sum(self.ledger.sizes[position] for position in lost)
        self.skipped += lost
        self.held = {worker: [] for worker in WORKERS}
        self.given_up = True

    @rule(worker=worker_ids)
    def start(self, worker):
        if self.held[worker]:
            assert self.ledger.start(worker) == self.held[worker][0]
            self.started[worker].append(self.held[worker].pop(0))

    @rule(worker=worker_ids)
    def accept(self, worker):
        self.ledger.pend(self.started[worker])
        self.pending += self.started[worker]
        self.started[worker] = []

    @rule()
    def fold(self):
        self.ledger.fold(self.pending)
        self.folded += self.pending
        self.pending = []

    @rule(worker=worker_ids)
    def refuse(self, worker):
        self.ledger.give_back(self.started[worker])
        self.started[worker] = []

    @rule(worker=worker_ids)
    def skip(self, worker):
        self.ledger.skip(self.started[worker])
        self.skipped += self.started[worker]
        self.started[worker] = []

    @rule(data=st.data())
    def unskip(self, data):
        positions = data.draw(st.lists(st.sampled_from(self.skipped), unique=True)) if self.skipped else []
        self.ledger.unskip(positions)
        self.skipped = [position for position in self.skipped if position not in positions]

    @rule(victim=worker_ids, count=st.integers(1, 4))
    def recall(self, victim, count):
        taken = self.ledger.recall(victim, count)
        assert taken == self.held[victim][len(self.held[victim]) - len(taken) :]
        del self.held[victim][len(self.held[victim]) - len(taken) :]

    @rule(worker=worker_ids)
    def die(self, worker):
        assert self.ledger.release(worker) == self.held[worker]
        self.ledger.give_back(self.started[worker])
        self.ledger.disown(worker)
        self.held[worker], self.started[worker] = [], []

    @invariant()
    def each_entry_is_in_one_place(self):
        ledger = self.ledger
        places = Counter(ledger.places)
        assert places[Place.HELD] == sum(map(len, self.held.values()))
        assert places[Place.STARTED] == sum(map(len, self.started.values()))
        assert places[Place.PENDING] == len(self.pending)
        assert places[Place.FOLDED] == len(self.folded) == len(set(self.folded))
        assert places[Place.SKIPPED] == len(self.skipped) == len(set(self.skipped))
        assert ledger.folded == sum(ledger.sizes[position] for position in self.folded)
        assert ledger.done == (ledger.folded + ledger.skipped == self.total)
        assert (ledger.num_free == 0) == (places[Place.FREE] == 0 and (self.given_up or sum(ledger.sizes) == self.total))

    @invariant()
    def a_cut_keeps_its_identity(self):
        """Pieces are of one stretch each, and no sample is in two of them."""
        if self.cut:
            samples = Counter(sample for start, stop in self.ledger.cuts for sample in range(start, stop))
            assert set(samples.values()) <= {1}
            assert all(start // self.cut == (stop - 1) // self.cut for start, stop in self.ledger.cuts)
            assert self.ledger.sizes == [stop - start for start, stop in self.ledger.cuts]
            assert min(self.ledger.sizes, default=1) >= 1

    def teardown(self):
        """Whatever was left can be worked off by anyone, once."""
        if not hasattr(self, "ledger"):
            return
        for worker in WORKERS:
            self.die(worker)
        self.fold()
        self.ledger.enter(0)
        while self.ledger.has_for(0):
            self.lease(0, 3, False)
        while self.held[0]:
            self.start(0)
        self.accept(0)
        self.fold()
        self.each_entry_is_in_one_place()
        self.a_cut_keeps_its_identity()
        assert self.ledger.done
        if self.cut and not self.given_up:
            assert sum(self.ledger.sizes) == self.total


TestWork = Work.TestCase
TestWork.settings = settings(max_examples=150, stateful_step_count=40)


def test_what_comes_back_goes_to_the_front_in_its_order():
    ledger = Ledger((1,) * 6)
    ledger.lease(0, 4)
    started = [ledger.start(0), ledger.start(0)]
    assert ledger.release(0) == [2, 3]
    ledger.give_back(started)
    assert ledger.lease(1, 6) == [0, 1, 2, 3, 4, 5]


def test_a_fixed_share_is_its_owners_until_the_owner_dies():
    ledger = Ledger((1,) * 6, owners=(0, 1, 0, 1, 0, 1))
    assert ledger.lease(0, 6) == [0, 2, 4]
    assert not ledger.has_for(0)
    ledger.start(0)
    ledger.give_back([0])
    assert ledger.lease(0, 6) == [0]
    assert ledger.lease(1, 1) == [1]
    ledger.disown(1)
    assert ledger.lease(0, 6) == [3, 5]


def cut_ledger(num_samples: int, cut: int, *workers: int, parts: dict[int, float] | None = None) -> Ledger:
    ledger = Ledger((num_samples,), cut=cut)
    ledger.enter(*workers)
    ledger.set_parts(parts or {})
    return ledger


def ranges(ledger: Ledger, worker: int, count: int, *, greedy: bool = False) -> list[tuple[int, int]]:
    return [ledger.cuts[position] for position in ledger.lease(worker, count, greedy=greedy)]


def test_a_cut_batch_is_divided_among_the_workers_and_a_piece_keeps_its_identity():
    ledger = cut_ledger(20, 10, 0, 1, 2)
    assert ranges(ledger, 0, 2) == [(0, 4), (10, 14)]
    ledger.start(0)
    ledger.give_back([0])
    assert ranges(ledger, 1, 3) == [(0, 4), (4, 7), (14, 17)]
    assert ranges(ledger, 2, 3) == [(7, 10), (17, 20)]
    assert ledger.cuts == [(0, 4), (10, 14), (4, 7), (14, 17), (7, 10), (17, 20)]


def test_pieces_follow_the_parts_from_the_next_stretch_on_and_who_has_none_gets_the_mean():
    ledger = cut_ledger(72, 24, 0, 1, 2)
    assert ranges(ledger, 0, 1) == [(0, 8)]
    ledger.set_parts({0: 0.5, 1: 0.1})
    assert ranges(ledger, 0, 1) == [(24, 37)]
    assert ranges(ledger, 2, 2) == [(16, 24), (40, 48)]
    assert ranges(ledger, 1, 2) == [(8, 16), (37, 40)]
    assert ranges(ledger, 1, 1) == [(61, 64)]


def test_what_a_dead_worker_was_to_cut_goes_to_whoever_comes_next_and_not_in_one_piece_when_it_is_much():
    ledger = cut_ledger(92, 46, 0, 1, 2, 3, parts={0: 1.0, 1: 1.0, 2: 1.0, 3: 20.0})
    assert ranges(ledger, 0, 1) == [(0, 2)]
    ledger.disown(3)
    assert ranges(ledger, 0, 3) == [(6, 26), (26, 46), (46, 62)]
    assert ranges(ledger, 1, 2) == [(2, 4), (62, 77)]


def test_only_a_greedy_worker_takes_what_others_have_not_come_for():
    ledger = cut_ledger(12, 12, 0, 1, parts={0: 1.0, 1: 5.0})
    assert ranges(ledger, 0, 2) == [(0, 2)]
    assert not ledger.has_for(0)
    assert ledger.has_for(0, greedy=True)
    assert ranges(ledger, 0, 1, greedy=True) == [(2, 4)]
    assert ranges(ledger, 1, 9) == [(4, 12)]


def test_a_joiner_has_a_part_of_the_next_stretch():
    ledger = cut_ledger(24, 12, 0, 1)
    assert ranges(ledger, 0, 1) == [(0, 6)]
    ledger.enter(5)
    assert ranges(ledger, 5, 1) == [(20, 24)]
    assert ranges(ledger, 1, 2) == [(6, 12), (16, 20)]


def test_a_stretch_of_fewer_samples_than_workers_goes_round():
    ledger = cut_ledger(6, 2, 0, 1, 2)
    assert [ranges(ledger, worker, 9) for worker in (2, 0, 1)] == [[(2, 3), (5, 6)], [(0, 1), (3, 4)], [(1, 2), (4, 5)]]


def test_what_is_undone_is_leased_again_at_once():
    ledger = Ledger((1, 2, 3, 4))
    ledger.lease(0, 3)
    done = [ledger.start(0) for _ in range(3)]
    ledger.pend(done)
    ledger.fold(done)
    ledger.undo([0, 2])
    assert (ledger.folded, ledger.done) == (2, False)
    assert ledger.lease(1, 4) == [0, 2, 3]
    with pytest.raises(AssertionError, match="entry 0 is held, not folded"):
        ledger.undo([0])


def test_what_is_undone_of_a_fixed_share_is_its_owners():
    ledger = Ledger((1,) * 4, owners=(0, 1, 0, 1))
    ledger.lease(1, 1)
    ledger.start(1)
    ledger.pend([1])
    ledger.fold([1])
    ledger.undo([1])
    assert ledger.lease(1, 4) == [1, 3]


@pytest.mark.parametrize(("free", "share"), [(100, 4), (32, 4), (16, 2), (8, 1), (1, 1)])
def test_leases_get_smaller_towards_the_end(free, share):
    assert Ledger((1,) * free).share(4) == share


def test_an_entry_is_settled_once():
    ledger = Ledger((1,))
    ledger.lease(0, 1)
    ledger.start(0)
    ledger.pend([0])
    ledger.fold([0])
    with pytest.raises(AssertionError, match="entry 0 is folded, not pending"):
        ledger.fold([0])


def test_closing_gives_up_what_nobody_computes_on():
    ledger = Ledger((2,) * 5)
    ledger.lease(0, 3)
    ledger.start(0)
    assert ledger.close() == {0: [1, 2]}
    assert (ledger.skipped, ledger.done) == (8, False)
    ledger.pend([0])
    ledger.fold([0])
    assert ledger.done
