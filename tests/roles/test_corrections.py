"""What the order says of stale gradients, and that what their workers had read is still there when they are corrected."""

from __future__ import annotations

import pytest

import randomworlds
from desk import Desk
from paceline.messages import Address, Factor, PartNorm
from paceline.pace import Pace, parse_pace
from paceline.roles.worker import WorkerRole
from stores import Violation

SERVER = Address("server")
NUM_WORLDS = 120


def factor_of(desk: Desk) -> Factor:
    message = desk.sent[-1].message
    assert isinstance(message, Factor)
    return message


def test_members_say_how_stale_they_are_at_their_fold():
    desk = Desk("async", 2)
    desk.push(0)
    desk.push(1, read=0)
    desk.push(0, read=1)
    assert [[member.staleness for member in fold.members] for fold in desk.folds] == [[0], [1], [1]]


def test_an_accepted_member_and_its_fold_say_the_same():
    desk = Desk("kbatchasync:2", 3)
    for worker in range(3):
        desk.push(worker)
    desk.push(0, read=0)
    assert [accept.member.staleness for accept in desk.accepts] == [0, 1]
    assert [[member.staleness for member in fold.members] for fold in desk.folds] == [[0, 0], [1, 1]]


def test_members_of_a_distinct_fold_are_as_stale_as_they_were_kept():
    desk = Desk("kasync:2", 3)
    for worker in (0, 1, 2, 0):
        desk.push(worker, read=0 if worker == 2 else None)
    assert [(member.worker, member.staleness) for member in desk.folds[1].members] == [(0, 0), (2, 1)]


@pytest.mark.parametrize(("scales_gradients", "factor", "lr_factor"), [(True, 0.25, 1.0), (False, 1.0, 0.25)])
def test_a_bound_goes_through_the_gradient_or_through_the_learning_rate(scales_gradients, factor, lr_factor):
    desk = Desk("async,correction=bound:2", 2, scales_gradients=scales_gradients)
    desk.push(0)
    desk.push(1, read=0)
    desk.tell(SERVER, PartNorm(2, 0.0, 8.0))
    assert factor_of(desk) == Factor(2, factor, lr_factor)


def test_within_the_bound_a_step_stays_whole():
    desk = Desk("async,correction=bound:2", 2)
    desk.push(0)
    desk.push(1, read=0)
    desk.tell(SERVER, PartNorm(2, 0.0, 1.5))
    assert factor_of(desk) == Factor(2, 1.0, 1.0)


def test_a_bounded_update_without_a_stale_member_needs_no_factor():
    desk = Desk("async,correction=bound:2", 1)
    for _ in range(3):
        desk.push(0)
    assert not any(isinstance(one.message, Factor) for one in desk.sent)
    assert not desk.coordinator.folds.norms


@pytest.mark.parametrize(("scales_gradients", "factor", "lr_factor"), [(True, 0.125, 1.0), (False, 0.5, 0.25)])
def test_clipping_and_the_bound_come_from_one_question(scales_gradients, factor, lr_factor):
    desk = Desk("async,correction=bound:2", 2, scales_gradients=scales_gradients)
    desk.push(0)
    desk.push(1, read=0, clip=2.0)
    desk.tell(SERVER, PartNorm(2, 16.0, 8.0))
    assert factor_of(desk).factor == pytest.approx(factor)
    assert factor_of(desk).lr_factor == lr_factor


def play_worlds(patch: pytest.MonkeyPatch) -> None:
    """Random worlds in which most paces correct."""

    def correcting(draw, num_workers) -> Pace:
        return parse_pace(random_pace(draw, num_workers).name + draw.choice((",correction=dc", ",correction=bound", "")))

    random_pace = randomworlds.random_pace
    patch.setattr(randomworlds, "random_pace", correcting)
    for seed in range(NUM_WORLDS):
        randomworlds.play(seed)


def test_what_a_worker_had_read_is_there_until_its_gradient_is_corrected(monkeypatch):
    play_worlds(monkeypatch)


def test_a_pull_that_comes_before_the_newest_gradient_is_read_is_noticed(monkeypatch):
    pull = WorkerRole.pull

    def hasty(self, **options):
        told, self.pace = self.pace, None
        try:
            yield from pull(self, **options)
        finally:
            self.pace = told

    monkeypatch.setattr(WorkerRole, "pull", hasty)
    with pytest.raises(Violation, match="corrects"):
        play_worlds(monkeypatch)
