"""The first gathering: who is waited for, and who is not."""

from __future__ import annotations

import pytest

from desk import Desk
from paceline.messages import Address, Attached, Bye, Finished, Halt, Hello, Seeded, Serve, ServerHello, Serving, Welcome
from paceline.pace import parse_pace
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import Effect, End, JobSettings, Note, Send
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


def test_a_server_that_comes_first_or_last_builds_its_shard_from_written_values_only() -> None:
    for comes_last in (False, True):
        coordinator, arrivals = gathering(1), [hello(0), (Address("server"), ServerHello(0, 9, "host"))]
        before = [effect for sender, message in arrivals[:: 1 if comes_last else -1] for effect in coordinator.handle(sender, message, 0.0)]
        after = coordinator.handle(Address("worker", 0), Seeded(True), 1.0)
        assert not any(isinstance(effect.message, Serve) for effect in before if isinstance(effect, Send))
        (serve,) = [effect.message for effect in after if isinstance(effect, Send)]
        assert isinstance(serve, Serve)
        assert serve.has_optimizer_state


def begun_with_three_servers(*, joined: int, workers_come_once: bool = True) -> tuple[Coordinator, list[Effect]]:
    """A job of two workers and a model for one server, of which `joined` are there when its patience is over; server 2 is not there yet."""
    settings = JobSettings(2, 3, parse_pace("sync"), servers_are_open=True, workers_come_once=workers_come_once, patience_s=10.0)
    coordinator = Coordinator(settings)
    effects: list[Effect] = []
    for shard in (0, 1):
        effects += coordinator.handle(Address("server", shard), ServerHello(shard, 9, "host"), 0.0)
    for worker in range(joined):
        effects += coordinator.handle(*hello(worker), 0.0)
    effects += coordinator.expire(11.0)
    effects += coordinator.handle(Address("worker", 0), Seeded(False), 11.0)
    effects += coordinator.handle(Address("server", 0), Serving(), 11.0)
    assert halted(effects) == []
    for worker in range(joined):
        effects += coordinator.handle(Address("worker", worker), Attached(), 11.0)
    return coordinator, effects


def halted(effects: list[Effect]) -> list[Address]:
    return [effect.to for effect in effects if isinstance(effect, Send) and effect.message == Halt(0, "")]


def test_servers_without_a_shard_end_when_every_worker_is_attached() -> None:
    coordinator, effects = begun_with_three_servers(joined=2)
    assert halted(effects) == [Address("server", 1)]
    noted = [effect.event for effect in effects if isinstance(effect, Note) and effect.event["event"] == "leave"]
    assert noted == [{"event": "leave", "role": "server", "id": 1, "worker": None, "reason": "it holds no shard"}]
    assert coordinator.left(Address("server", 1), "its connection ended", 12.0) == []
    late = coordinator.handle(Address("server", 2), ServerHello(2, 9, "host"), 12.0)
    assert halted(late) == [Address("server", 2)]
    assert [effect.code for effect in coordinator.left(Address("server", 0), "killed", 13.0) if isinstance(effect, End)] == [4]


def test_servers_without_a_shard_stay_for_a_worker_that_is_late() -> None:
    coordinator, effects = begun_with_three_servers(joined=1)
    assert halted(effects) == []
    assert halted(coordinator.handle(*hello(1), 12.0)) == []
    assert halted(coordinator.handle(Address("worker", 1), Attached(), 13.0)) == [Address("server", 1)]


@pytest.mark.parametrize("has_joined", [True, False])
def test_servers_without_a_shard_end_when_the_worker_that_was_late_is_lost(has_joined: bool) -> None:
    coordinator, _ = begun_with_three_servers(joined=1)
    if has_joined:
        coordinator.handle(*hello(1), 12.0)
    assert halted(coordinator.left(Address("worker", 1), "it was killed", 13.0)) == [Address("server", 1)]


def test_servers_without_a_shard_stay_where_workers_come_again() -> None:
    assert halted(begun_with_three_servers(joined=2, workers_come_once=False)[1]) == []


def test_the_end_does_not_wait_for_the_servers_that_have_gone() -> None:
    coordinator, _ = begun_with_three_servers(joined=2)
    coordinator.left(Address("server", 1), "its connection ended", 12.0)
    coordinator.handle(Address("server", 2), ServerHello(2, 9, "host"), 12.0)
    coordinator.left(Address("server", 2), "its connection ended", 12.0)
    effects = [effect for worker in (0, 1) for effect in coordinator.handle(Address("worker", worker), Bye(), 13.0)]
    effects += coordinator.handle(Address("server", 0), Finished(0), 14.0)
    assert [(effect.code, effect.sentence) for effect in effects if isinstance(effect, End)] == [
        (1, "the run ended without a single update: no sample was folded")
    ]


def test_a_server_that_comes_when_the_run_ends_is_not_waited_for() -> None:
    coordinator, _ = begun_with_three_servers(joined=2, workers_come_once=False)
    effects = [effect for worker in (0, 1) for effect in coordinator.handle(Address("worker", worker), Bye(), 13.0)]
    for server in (0, 1):
        effects += coordinator.handle(Address("server", server), Finished(0), 14.0)
    assert not any(isinstance(effect, End) for effect in effects)
    assert halted(coordinator.handle(Address("server", 2), ServerHello(2, 9, "host"), 15.0)) == [Address("server", 1), Address("server", 2)]
    assert any(isinstance(effect, End) for effect in coordinator.left(Address("server", 2), "its connection ended", 16.0))


def test_a_run_that_is_cut_short_books_the_epoch_that_was_open() -> None:
    desk = Desk("sync", 2, num_batches=10, samples=4)
    desk.coordinator.job.end(130, "interrupted")
    assert (
        desk.coordinator.summary()["ledger"]
        == desk.coordinator.summary()["ledger"]
        == {"once": 0, "repeated": 0, "skipped": 40, "undone": 0}
    )
