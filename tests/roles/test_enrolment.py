"""The first gathering: who is waited for, and who is not."""

from __future__ import annotations

from desk import Desk
from paceline.messages import Address, Bye, Hello, Welcome
from paceline.pace import parse_pace
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import End, JobSettings, Send
from world import model_of


def gathering(num_workers: int) -> Coordinator:
    return Coordinator(JobSettings(num_workers, 1, parse_pace("sync")))


def hello(worker: int) -> tuple[Address, Hello]:
    return Address("worker", worker), Hello(worker, 0, 1, "host", model_of())


def test_a_worker_that_dies_before_its_hello_is_not_waited_for() -> None:
    coordinator = gathering(2)
    assert not any(isinstance(effect, Send) for effect in coordinator.handle(*hello(1), 0.0))
    effects = coordinator.left(Address("worker", 0), "it was killed", 1.0)
    assert [effect.message.first for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Welcome)] == [True]
    assert coordinator.summary()["lost"] == [0]


def test_the_others_hello_may_come_after_that_death() -> None:
    coordinator = gathering(2)
    coordinator.left(Address("worker", 0), "it was killed", 1.0)
    assert any(isinstance(effect, Send) for effect in coordinator.handle(*hello(1), 2.0))


def test_a_job_whose_workers_all_die_before_their_hello_ends() -> None:
    coordinator = gathering(2)
    coordinator.left(Address("worker", 0), "it was killed", 1.0)
    effects = coordinator.left(Address("worker", 1), "it was killed", 1.0)
    assert [effect.code for effect in effects if isinstance(effect, End)] == [4]


def test_a_job_whose_scripts_all_end_before_their_hello_had_nothing_to_train() -> None:
    coordinator = gathering(2)
    assert coordinator.handle(Address("worker", 0), Bye(), 1.0) == []
    effects = coordinator.handle(Address("worker", 1), Bye(), 1.0)
    assert [effect for effect in effects if isinstance(effect, End)] == [
        End(1, "the script ended in every worker before it called run.prepare(...), so there was nothing to train")
    ]


def test_a_small_model_is_not_cut_for_servers_that_nobody_asked_for() -> None:
    for is_open, least_bytes, shards in ((True, 1 << 22, 1), (True, 64, 3), (False, 1 << 22, 3)):
        coordinator = Coordinator(JobSettings(1, 3, parse_pace("sync"), servers_are_open=is_open, least_shard_bytes=least_bytes))
        effects = coordinator.handle(*hello(0), 0.0)
        assert [effect.message.num_servers for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Welcome)] == [
            shards
        ]
        assert coordinator.summary()["shards"] == shards


def test_a_run_that_is_cut_short_books_the_epoch_that_was_open() -> None:
    desk = Desk("sync", 2, num_batches=10, samples=4)
    desk.coordinator.job.end(130, "interrupted")
    assert (
        desk.coordinator.summary()["ledger"]
        == desk.coordinator.summary()["ledger"]
        == {"once": 0, "repeated": 0, "skipped": 40, "undone": 0}
    )
