"""The ledger: every entry is in exactly one place, whatever is leased, recalled, refused or lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paceline.logic.ledger import Ledger, Place

WORKERS = range(3)
worker_ids = st.sampled_from(WORKERS)
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=15)


class Work(RuleBasedStateMachine):
    """Workers lease, start, push, are refused, rest and die at random."""

    @initialize(sizes=SIZES, kind=st.sampled_from(("exact", "static", "cut")), cut=st.integers(1, 9))
    def begin(self, sizes, kind, cut):
        owners = [i % len(WORKERS) for i in range(len(sizes))] if kind == "static" else ()
        self.ledger = Ledger(sizes, owners=owners, cut=cut if kind == "cut" else 0)
        self.total = sum(sizes)
        self.held: dict[int, list[int]] = {worker: [] for worker in WORKERS}
        self.started: dict[int, list[int]] = {worker: [] for worker in WORKERS}
        self.pending: list[int] = []
        self.settled: Counter[int] = Counter()

    @rule(worker=worker_ids, count=st.integers(1, 4))
    def lease(self, worker, count):
        had = self.ledger.has_for(worker)
        leased = self.ledger.lease(worker, count, len(WORKERS))
        assert bool(leased) == had
        self.held[worker] += leased

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
        self.settled.update(self.pending)
        self.pending = []

    @rule(worker=worker_ids)
    def refuse(self, worker):
        self.ledger.give_back(self.started[worker])
        self.started[worker] = []

    @rule(worker=worker_ids)
    def skip(self, worker):
        self.ledger.skip(self.started[worker])
        self.settled.update(self.started[worker])
        self.started[worker] = []

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
        assert places[Place.FOLDED] + places[Place.SKIPPED] == sum(self.settled.values())
        assert set(self.settled.values()) <= {1}
        assert ledger.done == (ledger.folded + ledger.skipped == self.total)
        assert (ledger.num_free == 0) == (places[Place.FREE] == 0 and sum(ledger.sizes) == self.total)

    def teardown(self):
        """Whatever was left can be worked off by anyone, once."""
        if not hasattr(self, "ledger"):
            return
        for worker in WORKERS:
            self.die(worker)
        self.fold()
        while self.ledger.has_for(0):
            self.lease(0, 3)
        while self.held[0]:
            self.start(0)
        self.accept(0)
        self.fold()
        assert self.ledger.done
        assert self.ledger.folded + self.ledger.skipped == self.total


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


def test_a_global_batch_is_cut_among_the_live_workers_and_a_piece_keeps_its_identity():
    ledger = Ledger((10,) * 2, cut=10)
    assert ledger.lease(0, 2, num_workers=3) == [0, 1]
    assert ledger.cuts[:2] == [(0, 4), (4, 7)]
    ledger.start(0)
    ledger.give_back([0])
    assert ledger.lease(1, 1, num_workers=2) == [0]
    assert ledger.lease(1, 3, num_workers=2) == [2, 3, 4]
    assert ledger.cuts == [(0, 4), (4, 7), (7, 10), (10, 15), (15, 20)]


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
