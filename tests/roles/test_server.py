"""A server enacts the order entry by entry and answers pulls between entries."""

from __future__ import annotations

import pytest

from paceline.messages import (
    COORDINATOR,
    Accept,
    Address,
    Attach,
    Factor,
    Finish,
    Finished,
    Fold,
    Gone,
    Keep,
    Linked,
    Measured,
    Member,
    NotFinite,
    Params,
    PartNorm,
    Pull,
    Restate,
    Restore,
    Serve,
    Serving,
    SetPace,
    Snapshot,
    State,
)
from paceline.pace import parse_pace
from paceline.roles.effects import End, Send
from paceline.roles.server import Server
from world import model_of

WORKER = Address("worker", 0)


class Store:
    """Writes down what it is asked to do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.not_finite: str | None = None

    def attach(self, worker, incarnation, memory):
        self.done.append(f"attach {worker}.{incarnation}")

    def detach(self, worker, incarnation):
        self.done.append(f"detach {worker}.{incarnation}")

    def gather(self, member):
        self.done.append(f"gather {member.worker}")

    def reduce(self, members, scale):
        self.done.append(f"reduce {' '.join(str(member.worker) for member in members)} x {scale}")

    def square_norm(self):
        return 9.0

    def moved(self):
        return 2.0

    def apply(self, *, factor, lr_factor, hyper, absent, measure):
        self.done.append(f"apply x {factor}{f' at rate x {lr_factor}' if lr_factor != 1.0 else ''}")
        return (4.0, 100.0, 0.25) if measure else None

    def set_pace(self, pace, *, ramp_updates):
        self.done.append(f"pace {pace.name} over {ramp_updates}")

    def keep(self):
        self.done.append("keep")

    def restore(self):
        self.done.append("restore")

    def idle(self):
        self.done.append("idle")
        return len(self.done) < 3

    def find_non_finite(self):
        return self.not_finite

    def copy_out(self, worker, incarnation, *, buffers):
        self.done.append(f"copy to {worker}{' with buffers' if buffers else ''}")

    def take_buffers(self, member):
        self.done.append(f"buffers of {member.worker}")

    def save(self, *, optimizer):
        return b"saved"

    def load(self, state, *, parameters, optimizer):
        self.done.append("load")


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def server(store):
    server = Server(0, lambda serve, attachments: store)
    server.handle(COORDINATOR, Serve(0, 1, model_of(), False), ())
    server.handle(WORKER, Attach(0, 0), ("memory",))
    store.done.clear()
    return server


def fold(version: int, *workers: int, clip: float = 0.0, gathered: bool = False) -> Fold:
    return Fold(version, tuple(Member(worker, 0, version - 1, 0, 1.0, gathered) for worker in workers), 1.0, 1.0, clip=clip)


def messages(effects) -> list:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def test_a_worker_that_comes_before_the_shard_is_linked_when_it_is_built(store):
    server = Server(0, lambda serve, attachments: store)
    assert server.handle(WORKER, Attach(0, 0), ("memory",)) == []
    assert messages(server.handle(COORDINATOR, Serve(0, 1, model_of(), False), ())) == [Serving(), Linked()]


def test_updates_are_made_in_order_and_pulls_wait_for_their_version(server, store):
    assert server.handle(WORKER, Pull(1, copy=True)) == []
    assert messages(server.handle(COORDINATOR, fold(1, 0))) == [Params(1)]
    assert store.done == ["reduce 0 x 1.0", "apply x 1.0", "copy to 0"]


def test_a_pull_that_comes_in_mid_update_is_answered_behind_it_if_its_buffer_was_read_before(server, store):
    next_ones: list[list[tuple[int, int, bool]]] = []

    def apply(**_: object) -> None:
        for pull in (Pull(2, copy=True), Pull(1, copy=True, taken=0), Pull(1, copy=False), Pull(1, copy=True)):
            server.park(WORKER, pull)
            next_ones.append(server.answered_next())

    store.apply = apply
    assert messages(server.handle(COORDINATOR, fold(1, 0))) == [Params(1)] * 3
    assert next_ones == [[], [], [(0, 0, False)], [(0, 0, False), (0, 0, True)]]


def test_a_gap_in_the_versions_ends_the_server(server):
    end = server.handle(COORDINATOR, fold(2, 0))[0]
    assert end == End(4, "server 0 is at version 0 and was ordered to make 2")


def test_a_pull_waits_until_the_gradient_of_its_step_has_been_read(server):
    assert server.handle(WORKER, Pull(0, copy=False, taken=0)) == []
    assert messages(server.handle(COORDINATOR, Accept(Member(0, 0, 0, 0, 4.0)))) == [Params(0)]


def test_a_pull_in_place_copies_nothing(server, store):
    assert messages(server.handle(WORKER, Pull(0, copy=False))) == [Params(0)]
    assert store.done == []


def test_buffers_are_taken_once_with_the_accept_or_with_the_fold(server, store):
    server.handle(COORDINATOR, Accept(Member(0, 0, 0, 0, 4.0, buffer_samples=4)))
    server.handle(COORDINATOR, Fold(1, (Member(0, 0, 0, 0, 4.0, True, 4),), 0.25, 1.0))
    server.handle(COORDINATOR, Fold(2, (Member(0, 0, 1, 1, 1.0, False, 4),), 1.0, 1.0))
    assert store.done.count("buffers of 0") == 2


def test_behind_a_clipped_update_all_waits_for_its_factor(server, store):
    assert messages(server.handle(COORDINATOR, fold(1, 0, clip=1.0))) == [PartNorm(1, 9.0)]
    assert server.handle(COORDINATOR, fold(2, 0)) == []
    assert server.handle(WORKER, Pull(2, copy=False)) == []
    assert messages(server.handle(COORDINATOR, Factor(1, 0.5))) == [Params(2)]
    assert store.done == ["reduce 0 x 1.0", "apply x 0.5", "reduce 0 x 1.0", "apply x 1.0"]
    assert server.handle(COORDINATOR, Factor(1, 0.5)) == []


def test_a_bounded_update_waits_only_when_a_member_is_stale(server, store):
    server.handle(COORDINATOR, SetPace(0, parse_pace("async,correction=bound")))
    assert server.handle(COORDINATOR, fold(1, 0)) == []
    stale = Fold(2, (Member(0, 0, 1, 0, 1.0, staleness=1),), 1.0, 0.5)
    assert messages(server.handle(COORDINATOR, stale)) == [PartNorm(2, 0.0, 2.0)]
    server.handle(COORDINATOR, Factor(2, 1.0, 0.25))
    assert store.done[-1] == "apply x 1.0 at rate x 0.125"
    server.handle(COORDINATOR, SetPace(2, parse_pace("async")))
    assert server.handle(COORDINATOR, Fold(3, (Member(0, 0, 2, 0, 1.0, staleness=1),), 1.0, 1.0)) == []


def test_the_correction_that_the_run_begins_with_is_in_force_at_once(store):
    server = Server(0, lambda serve, attachments: store)
    server.handle(COORDINATOR, Serve(0, 1, model_of(), False, parse_pace("async,correction=bound")), ())
    stale = Fold(1, (Member(0, 0, 0, 0, 1.0, staleness=1),), 1.0, 1.0)
    assert messages(server.handle(COORDINATOR, stale)) == [PartNorm(1, 0.0, 2.0)]


def test_a_change_of_pace_is_enacted_between_the_updates_that_it_stands_between(server, store):
    server.handle(COORDINATOR, fold(1, 0, clip=1.0))
    assert server.handle(COORDINATOR, Keep(1)) == []
    server.handle(COORDINATOR, SetPace(1, parse_pace("async,momentum=ramp"), 70))
    server.handle(COORDINATOR, fold(2, 0))
    server.handle(COORDINATOR, Factor(1, 1.0))
    assert store.done == ["reduce 0 x 1.0", "apply x 1.0", "keep", "pace async,momentum=ramp over 70", "reduce 0 x 1.0", "apply x 1.0"]


def test_a_restore_is_an_update_and_answers_the_pulls_that_wait_for_it(server, store):
    server.handle(COORDINATOR, Keep(0))
    server.handle(COORDINATOR, fold(1, 0))
    server.handle(COORDINATOR, Accept(Member(0, 0, 1, 1, 4.0)))
    assert server.handle(WORKER, Pull(2, copy=True, taken=1)) == []
    assert messages(server.handle(COORDINATOR, Restore(2))) == [Params(2)]
    assert store.done[-2:] == ["restore", "copy to 0"]


@pytest.mark.parametrize("order", [SetPace(1, parse_pace("async")), Keep(1), Restore(2), Restore(0)])
def test_a_change_of_pace_at_another_version_ends_the_server(server, store, order):
    end = server.handle(COORDINATOR, order)[0]
    assert isinstance(end, End)
    assert end.sentence.startswith("server 0 is at version 0 and was ordered to be ")
    assert store.done == []


def test_an_update_is_measured_when_that_is_asked(server):
    asked = Fold(1, (Member(0, 0, 0, 0, 1.0),), 1.0, 1.0, measure=True)
    assert messages(server.handle(COORDINATOR, asked)) == [Measured(1, 4.0, 100.0, 0.25)]
    assert messages(server.handle(COORDINATOR, fold(2, 0))) == []


def test_a_server_without_a_shard_has_nothing_to_do_when_idle(server, store):
    assert not Server(0, lambda serve, attachments: store).idle()
    assert server.idle()
    assert server.idle()
    assert not server.idle()


def test_a_shard_that_turns_non_finite_is_told_with_its_update(server, store):
    store.not_finite = "fc.weight"
    assert messages(server.handle(COORDINATOR, fold(1, 0))) == [NotFinite(1, "fc.weight")]


def test_a_snapshot_is_of_its_place_in_the_order(server):
    server.handle(COORDINATOR, fold(1, 0))
    effect = server.handle(COORDINATOR, Snapshot(0, 0, 7, optimizer=True))[0]
    assert effect == Send(WORKER, State(7, 1), (b"saved",))


def test_a_snapshot_is_not_sent_to_the_successor_of_the_one_that_asked(server):
    server.handle(WORKER, Attach(0, 1), ("memory",))
    assert server.handle(COORDINATOR, Snapshot(0, 0, 7, optimizer=True)) == []


def test_a_loaded_state_is_an_update(server, store):
    server.handle(COORDINATOR, Restate(1, True, False), (b"state",))
    assert store.done == ["load"]
    assert messages(server.handle(COORDINATOR, Finish())) == [Finished(1)]


def test_a_dead_workers_memory_is_let_go_at_its_place_in_the_order(server, store):
    server.handle(WORKER, Pull(5, copy=True))
    assert server.left(WORKER) == []
    server.handle(COORDINATOR, fold(1, 0))
    server.handle(COORDINATOR, Gone(0, 0))
    assert store.done == ["reduce 0 x 1.0", "apply x 1.0", "detach 0.0"]


def test_a_successor_may_attach_before_its_predecessor_is_let_go(server, store):
    server.handle(WORKER, Attach(0, 1), ("memory",))
    server.handle(COORDINATOR, fold(1, 0))
    server.handle(COORDINATOR, Gone(0, 0))
    assert store.done == ["attach 0.1", "reduce 0 x 1.0", "apply x 1.0", "detach 0.0"]
    assert messages(server.handle(WORKER, Pull(1, copy=True))) == [Params(1)]


def test_memory_that_is_handed_over_after_its_worker_has_gone_is_not_mapped(server, store):
    server.handle(COORDINATOR, Gone(1, 0))
    assert server.handle(Address("worker", 1), Attach(1, 0), ("memory",)) == []
    assert store.done == []


def test_what_is_no_order_ends_the_server(server):
    end = server.handle(COORDINATOR, Params(1))[0]
    assert end == End(4, "server 0 got Params, which is no order")
