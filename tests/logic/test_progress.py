"""Leads without a scan are those of a scan."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.logic.progress import Progress

WORKERS = range(5)
KINDS = ("enter", "rest", "remove", "answered", "block", "reset")
MOVES = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(WORKERS)), max_size=120)


class Naive:
    """The same in plain words: counts of the active, of the resting, and the fewest."""

    def __init__(self) -> None:
        self.active: dict[int, int] = {}
        self.resting: dict[int, int] = {}
        self.fewest = 0

    def scan(self) -> None:
        self.fewest = min(self.active.values(), default=self.fewest)

    def move(self, move: str, worker: int) -> None:
        if move == "enter" and worker not in self.active:
            self.active[worker] = max(self.resting.pop(worker, 0), self.fewest)
        elif move in ("rest", "remove") and worker in self.active:
            self.resting[worker] = self.active.pop(worker)
        elif move == "answered":
            self.active[worker] += 1
        elif move == "reset":
            self.active = dict.fromkeys(self.active, 0)
            self.resting, self.fewest = {}, 0
        if move == "remove":
            self.resting.pop(worker, None)
        self.scan()


@given(MOVES, st.integers(0, 3))
def test_leads_and_who_is_let_go_are_those_of_a_scan(moves, max_lead):
    progress, naive, blocked = Progress(), Naive(), set()
    for move, worker in moves:
        if move in ("answered", "block") and worker not in naive.active:
            continue
        if move == "block":
            if worker in blocked or progress.lead(worker) <= max_lead:
                continue
            progress.block(worker, max_lead)
            blocked.add(worker)
        else:
            if move == "answered" and worker in blocked:
                continue
            getattr(progress, move)(*(() if move == "reset" else (worker,)))
            naive.move(move, worker)
            if move == "reset":
                blocked.clear()
            elif move in ("rest", "remove"):
                blocked.discard(worker)
        for number, count in naive.active.items():
            assert progress.lead(number) == count - naive.fewest
        free = {number for number in progress.unblocked() if number in blocked}
        assert free == {number for number in blocked if naive.active[number] - naive.fewest <= max_lead}
        blocked -= free


def test_each_worker_waits_for_its_own_bound():
    progress = Progress()
    for worker in (0, 1, 2):
        progress.enter(worker)
    for worker in (0, 0, 1, 1):
        progress.answered(worker)
    progress.block(0, 0)
    progress.block(1, 1)
    assert progress.unblocked() == []
    progress.answered(2)
    assert progress.unblocked() == [1]
    progress.answered(2)
    assert progress.unblocked() == [0]
    assert progress.num_blocked == 0
