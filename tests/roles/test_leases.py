"""Batches that are cut by parts: whole updates in sync, each sample once in any pace, whatever dies, joins or moves."""

from __future__ import annotations

import random

import pytest

from desk import Desk
from ends import check_end, check_samples
from laws import Referee
from paceline.hybrid import parse_mode
from paceline.logic.ledger import Ledger
from paceline.messages import Begin, Enter, Grant, LeaseRequest
from paceline.pace import parse_pace
from paceline.roles.effects import JobSettings, Send
from paceline.settings import Shares
from randomworlds import random_mishaps, random_pace
from routines import Data, Habits, Trainee
from stores import Violation
from world import Mishap, World

KEEPING = ("sync", "kasync:2", "kbatchasync:3", "softsync:2", "async", "ssp:2")


class Uneven(World):
    """A world whose batch shares are moved: a mishap `parts` draws new ones for some of the workers."""

    def _befall(self, mishap: Mishap) -> None:
        if mishap.kind != "parts":
            super()._befall(mishap)
            return
        workers = self.coordinator.job.members.workers
        parts = {worker: self.random.uniform(0.05, 1.0) for worker in workers if self.random.random() < 0.8}
        self.coordinator.epochs.leases.set_parts(parts)


def uneven(
    draw: random.Random, pace: str, num_workers: int, data: Data, *, shares: Shares = "even", **habits: object
) -> tuple[Uneven, Habits]:
    """A world in which all workers have joined."""
    ways = Habits(data, prefetch=draw.choice((0, 1, 5)), **habits)  # pyright: ignore[reportArgumentType]
    settings = JobSettings(num_workers, draw.randint(1, 3), parse_pace(pace), patience_s=16.0, shares=shares)
    world = Uneven(settings, draw, lambda process: Trainee(process, ways).main(), observer=Referee())
    world.observer.world = world  # pyright: ignore[reportAttributeAccessIssue]
    for worker in range(num_workers):
        world.join(worker)
    return world, ways


def moves_of_parts(draw: random.Random) -> list[Mishap]:
    return [Mishap(draw.randint(1, 400), "parts") for _ in range(draw.randint(0, 6))]


@pytest.mark.parametrize("seed", range(60))
def test_every_sync_update_has_a_piece_of_each_worker_and_the_whole_batch(seed):
    draw = random.Random(seed)
    num_workers = draw.randint(1, 5)
    cut, total = draw.randint(num_workers, 24), draw.randint(30, 150)
    world, _ = uneven(draw, "sync", num_workers, Data((total,), cut=cut), shares=draw.choice(("even", "speed")))
    assert world.run(moves_of_parts(draw)).code == 0
    updates = [event for event in world.events if event["event"] == "update"]
    sizes = [int(str(event["samples"])) for event in updates]
    sizes = [after - before for before, after in zip([0, *sizes], sizes, strict=False)]
    whole, rest = divmod(total, cut)
    assert sizes == [*[cut] * whole, *[rest] * (rest > 0)] * 2
    assert all(len(event["members"]) == num_workers for event, size in zip(updates, sizes, strict=True) if size == cut)  # type: ignore[arg-type]


def play(seed: int) -> None:
    """A world with everything that can happen, its shares among it, under all laws."""
    draw = random.Random(seed)
    num_workers = draw.randint(1, 5)
    data = Data((draw.randint(1, 60),), cut=draw.randint(1, 16))
    rare = draw.random
    world, habits = uneven(
        draw,
        draw.choice(("sync", "async", random_pace(draw, num_workers).name)),
        num_workers,
        data,
        shares=draw.choice(("even", "speed")),
        accumulate=draw.choice((1, 1, 1, 2)),
        breaks_after=draw.randint(1, 5) if rare() < 0.1 else 0,
        pause=draw.choice((0, 0, 5)),
        clip=draw.choice((0.0, 0.0, 1.0)),
        unlucky=draw.choice((0.0, 0.0, 0.0, 0.1)),
        stops_at=draw.randint(1, 8) if rare() < 0.05 else 0,
    )
    mishaps = random_mishaps(draw, num_workers) + moves_of_parts(draw)
    try:
        end = world.run(mishaps)
        if end.code == 0:
            check_end(world, world.observer)  # pyright: ignore[reportArgumentType]
            check_samples(world, world.observer, data, habits.num_epochs, habits)  # pyright: ignore[reportArgumentType]
        elif end.code == 1 and not any(word in end.sentence for word in ("not finite", "without a single update")):
            raise Violation(f"ended with 1: {end.sentence}")
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation} [{habits}, {mishaps}]") from violation


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_every_sample_is_folded_once_whatever_moves_the_shares(first):
    for seed in range(first, first + 100):
        play(seed)


@pytest.mark.parametrize("pace", KEEPING)
def test_pieces_are_sized_for_the_worker_that_asks(pace):
    """Most of them to the sample; what one takes over from another is at least no multiple of its size."""
    draw = random.Random(3)
    data = Data((1200,), cut=40)
    world, _ = uneven(draw, pace, 4, data, num_epochs=1)
    world.coordinator.epochs.leases.set_parts({0: 4.0, 1: 3.0, 2: 2.0, 3: 1.0})
    assert world.run([]).code == 0
    sizes = {worker: [] for worker in range(4)}
    for content in world.contents.values():
        sizes[content.name[0]].append(content.samples)
    for worker, size in enumerate((16, 12, 8, 4)):
        assert max(sizes[worker]) < 2 * size
        assert sizes[worker].count(size) >= 0.6 * len(sizes[worker])


def test_what_is_undone_is_leased_to_those_who_wait_for_something():
    desk = Desk("async", 2, num_batches=3)
    assert [list(desk.coordinator.job.members.workers[worker].started) for worker in (0, 1)] == [[0], [1]]
    desk.push(0)
    desk.push(0)
    desk.tell(0, LeaseRequest(0, wait=True))
    desk.coordinator.epochs.leases.undo([0, 2])
    grants = [send.message for send in desk.coordinator.job.take_outbox() if isinstance(send, Send)]
    assert [grant.positions for grant in grants if isinstance(grant, Grant)] == [(0,)]
    ledger = desk.coordinator.epochs.leases.ledger
    assert ledger is not None
    assert ledger.folded == 0


def test_parts_change_nothing_where_batches_are_whole():
    leases = Desk("sync", 2).coordinator.epochs.leases
    assert not leases.set_parts({0: 1.0, 1: 3.0})
    leases.open(Ledger((40,), cut=8))
    assert leases.set_parts({0: 1.0, 1: 3.0})


def test_one_that_is_gone_has_no_part_any_more():
    desk = Desk("sync", 3)
    desk.coordinator.moves.parts = {0: 0.5, 1: 0.3, 2: 0.2}
    desk.lose(1)
    assert desk.coordinator.status().shares == ((0, 0.5), (2, 0.2))


@pytest.mark.parametrize(("pace", "num_awaited"), [("sync", 4), ("ksync:3", 3), ("backup:2", 2), ("kasync:2", 2)])
def test_an_epoch_begins_when_as_many_have_asked_as_an_update_takes(pace: str, num_awaited: int):
    job, leases = (coordinator := Desk(pace, 4).coordinator).job, coordinator.epochs.leases
    leases.reset(1)
    leases.open(Ledger((4,) * 40))
    given: list[list[int]] = []
    for worker in (order := [3, 1, 0, 2]):  # whoever comes late has an evaluation to do
        leases.ask(job.members.workers[worker], wait=True)
        given.append(sorted(send.to.id for send in job.take_outbox() if isinstance(send, Send) and isinstance(send.message, Grant)))
    assert given == [[]] * (num_awaited - 1) + [sorted(order[:num_awaited])] + [[worker] for worker in order[num_awaited:]]


def test_a_pace_that_takes_fewer_begins_the_epoch_at_once():
    desk = Desk("sync", 3)
    leases = desk.coordinator.epochs.leases
    for worker in range(3):
        desk.push(worker)
    leases.reset(1)
    leases.open(Ledger((4,) * 40))
    desk.tell(1, LeaseRequest(1, wait=True))
    assert leases.grants_by_s is not None
    desk.sent.clear()
    desk.set_pace("async")
    assert [send.to.id for send in desk.sent if isinstance(send.message, Grant)] == [1]


def test_what_an_epochs_first_leases_wait_for_everybody_is_in_no_rate():
    desk = Desk("sync", 2, num_batches=20, hybrid=parse_mode("hybrid"))
    for epoch in (0, 1):
        for _ in range(10):
            desk.now_s += 0.1
            desk.push(0)
            desk.push(1)
        if epoch == 0:
            for worker in (0, 1):
                desk.tell(worker, LeaseRequest(0, wait=True))
                desk.at_end(worker)
            desk.now_s += 3.0
            desk.tell(0, Enter(1))
            desk.draw(20, epoch=1)
            desk.tell(0, LeaseRequest(1, wait=True))
            desk.now_s += 0.9
            desk.tell(1, Enter(1))
            desk.tell(1, LeaseRequest(1, wait=True))
            for worker in (0, 1):
                desk.tell(worker, Begin(1))
    assert desk.coordinator.job.version == 20
    gauges = desk.coordinator.job.gauges
    assert gauges is not None
    assert gauges.read("sync", 20, num_at_start=2, now_s=desk.now_s).samples_per_s == pytest.approx(80.0)
