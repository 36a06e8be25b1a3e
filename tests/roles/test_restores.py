"""Going back to a kept state: what is undone, what of it is leased again, and what a loaded state changes about it."""

from __future__ import annotations

from desk import Desk
from paceline.logic.ledger import Place
from paceline.messages import Load, Log, Restore
from paceline.pace import parse_pace
from paceline.roles.job import Since
from paceline.roles.steps import Change


def change(desk: Desk, pace: str, *, keeps: bool = False, restores: bool = False) -> str:
    """Ask for another pace; what any event brings then, in words."""
    desk.coordinator.steps.ask_for(Change(parse_pace(pace), "a test wants it", keeps=keeps, restores=restores))
    return desk.tell(0, Log({}, 0, 1))


def moved_away(num_workers: int = 2) -> Desk:
    """Workers that keep a state and have gone from sync to async with it, where each has pushed twice."""
    desk = Desk("sync", num_workers)
    change(desk, "async", keeps=True)
    for worker in (*range(num_workers), *range(num_workers)):
        desk.push(worker)
    assert desk.coordinator.job.pace.name == "async"
    return desk


def test_what_is_undone_is_leased_again_before_anything_new():
    desk = moved_away()
    since = desk.coordinator.job.kept
    assert since is not None
    positions = list(since.positions)
    assert len(positions) == 4
    change(desk, "sync", restores=True)
    assert desk.events[-2]["event"] == "restore"
    assert desk.events[-2]["undone"] == 16
    ledger = desk.coordinator.epochs.leases.ledger
    assert ledger is not None
    assert ledger.lease(0, 4) == positions
    updates = sum(event["event"] == "update" for event in desk.events)
    assert (desk.coordinator.summary()["updates"], desk.coordinator.job.version) == (updates, updates + 1)
    assert desk.coordinator.job.kept is None


def test_what_was_skipped_for_its_numbers_meanwhile_is_leased_again():
    desk = moved_away()
    ledger = desk.coordinator.epochs.leases.ledger
    assert ledger is not None
    workers = desk.coordinator.job.members.workers
    failing: list[int] = []
    for number in range(18):
        if not ledger.skipped:
            failing = list(workers[number % 2].started)
            desk.push(number % 2, norm=float("nan"))
    assert ledger.skipped == 4
    since = desk.coordinator.job.kept
    assert since is not None
    folded = list(since.positions)
    change(desk, "sync", restores=True)
    assert ledger.skipped == 0
    assert ledger.lease(0, 5) == [*folded, *failing]


def test_failures_of_what_was_taken_back_do_not_count():
    desk = moved_away()
    ledger, leases = desk.coordinator.epochs.leases.ledger, desk.coordinator.epochs.leases
    assert ledger is not None
    (again,) = desk.coordinator.job.members.workers[0].started
    for _ in range(2):
        leases.refused([again], not_finite=True)
        ledger.places[again] = Place.STARTED
    change(desk, "sync", restores=True)
    leases.refused([again], not_finite=True)
    assert ledger.skipped == 0


def test_of_epochs_that_are_over_only_a_sum_is_kept():
    since = Since()
    for epoch in range(1000):
        since.enter(epoch)
        since.folded((0, 1), 8)
        since.folded((2,), 3)
    assert (since.positions, since.samples, since.earlier) == ([0, 1, 2], 11, 999 * 11)


def test_after_a_loaded_state_nothing_goes_back_to_what_was_kept():
    desk = moved_away()
    desk.tell(0, Load(True, False))
    assert desk.coordinator.job.kept is None


def test_a_state_loaded_while_a_return_is_awaited_is_not_written_over():
    desk = Desk("sync", 2)
    desk.coordinator.job.kept = Since()
    change(desk, "async", restores=True)
    assert desk.coordinator.steps.change is not None
    desk.tell(0, Load(True, False))
    desk.push(0)
    desk.push(1)
    assert desk.coordinator.job.pace.name == "async"
    assert not any(isinstance(send.message, Restore) for send in desk.sent)


def test_what_nobody_counts_is_not_taken_from_the_counted_samples():
    epochs = Desk("async", 1).coordinator.epochs
    epochs.leases.ledger = None
    since = Since()
    since.enter(epochs.index - 1)
    since.folded((), 12)
    assert epochs.undo(since) == 12
    assert epochs.job.accounts.ledgers.once == 0
    assert epochs.job.accounts.ledgers.undone == 12
