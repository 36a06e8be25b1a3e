"""The worker's conversations, one message at a time."""

from __future__ import annotations

import pytest

from paceline.errors import ProtocolError
from paceline.messages import COORDINATOR, Address, Begin, EpochOver, Grant, LeaseRequest, Params, Pull, Ready, Start
from paceline.pace import parse_pace
from paceline.ports import Delivery
from paceline.roles.effects import Send
from paceline.roles.talk import Gradient, Leased, Receive
from paceline.roles.worker import WorkerRole

SERVER = Address("server")


def drive(talk, *answers):
    """Feed `answers` one per Receive; what was sent and what was returned."""
    sent, pending, value = [], list(answers), None
    while True:
        try:
            wish = talk.send(value)
        except StopIteration as end:
            assert not pending
            return sent, end.value
        value = None
        if isinstance(wish, Send):
            sent.append(wish.message)
        else:
            assert isinstance(wish, Receive)
            sender, message = pending.pop(0)
            value = Delivery(sender, message)


def started(**fields) -> tuple:
    return COORDINATOR, Start(**{"step": 0, "at_least": 0, "work": True, "in_place": False, **fields})


@pytest.fixture
def role():
    return WorkerRole(3, 0, 1)


def with_leases(role: WorkerRole, *positions: int) -> None:
    drive(role.lease(0, wait=True), (COORDINATOR, Grant(0, positions)))


def test_leases_are_held_in_order_and_to_be_fetched(role):
    sent, over = drive(role.lease(0, wait=True), (COORDINATOR, Grant(0, (4, 5), ((0, 8), (8, 12)))))
    assert (sent, over) == ([LeaseRequest(0, True)], None)
    assert list(role.held) == list(role.unfetched) == [Leased(4, (0, 8)), Leased(5, (8, 12))]


def test_what_is_recalled_is_neither_held_nor_fetched(role):
    with_leases(role, 1, 2, 3)
    drive(role.lease(0, wait=False), (COORDINATOR, Grant(0, (7,), (), (2, 3))))
    assert [leased.position for leased in role.held] == [1, 7]


def test_the_end_of_an_epoch_forgets_what_was_leased(role):
    with_leases(role, 1)
    _, over = drive(role.lease(0, wait=True), (COORDINATOR, EpochOver(0, 9, True, 2)))
    assert over == EpochOver(0, 9, True, 2)
    assert role.first == 2
    assert not role.held
    assert role.stopping


def test_only_what_was_granted_may_be_taken(role):
    with_leases(role, 1, 2)
    with pytest.raises(ProtocolError, match="worker 3 takes entry 1, which was not granted"):
        role.take(role.held[0])
    sent, work = drive(role.begin(0), started(at_least=2), (SERVER, Params(2)))
    assert work
    assert sent == [Begin(0), Pull(2, True)]
    role.take(role.held[0])
    assert [leased.position for leased in role.started] == [1]
    with pytest.raises(ProtocolError):
        role.take(role.held[0])


def test_a_further_entry_of_a_step_reads_nothing_anew(role):
    with_leases(role, 1, 2)
    drive(role.begin(0), started(), (SERVER, Params(0)))
    role.take(role.held[0])
    sent, work = drive(role.begin(0), started(at_least=5))
    assert (sent, work) == ([Begin(0)], True)


def test_a_step_names_what_it_is_of_and_reads_before_the_next(role):
    with_leases(role, 1)
    drive(role.begin(0), started(at_least=2), (SERVER, Params(3)))
    role.take(role.held[0])
    sent, start = drive(role.step(Gradient(8, 0.5)), started(step=1, at_least=4, clock=2), (SERVER, Params(4)))
    ready = sent[0]
    assert isinstance(ready, Ready)
    assert (ready.step, ready.buffer, ready.versions, ready.positions, ready.samples) == (0, 0, (3,), (1,), 8)
    assert sent[1] == Pull(4, True)
    assert (role.step_index, role.buffer, role.clock, role.versions) == (1, 1, 2, [4])
    assert start.at_least == 4


def test_a_buffer_is_written_again_only_after_its_gradient_was_read(role):
    taken = []
    for step in range(4):
        drive(role.begin(0), started(), (SERVER, Params(0)))
        sent, _ = drive(role.step(Gradient(1, 1.0)), started(step=step + 1, refused="late" if step == 1 else ""), (SERVER, Params(0)))
        taken.append(sent[1].taken)
    # step 1 was refused, so nobody reads it
    assert taken == [-1, 0, -1, 2]


def test_under_a_correction_the_parameters_stay_until_the_newest_gradient_was_read(role):
    role.pace = parse_pace("async")
    taken = []
    for step in range(5):
        drive(role.begin(0), started(), (SERVER, Params(0)))
        pace = {1: parse_pace("async,correction=dc"), 3: parse_pace("async")}.get(step)
        refused = "stale" if step == 2 else ""
        sent, _ = drive(role.step(Gradient(1, 1.0)), started(step=step + 1, pace=pace, refused=refused), (SERVER, Params(0)))
        taken.append(sent[1].taken)
    # step 1 waits for itself, step 2 was refused, from step 3 on only the buffer matters
    assert taken == [-1, 1, -1, -1, 3]


def test_reading_in_place_copies_nothing(role):
    sent, _ = drive(role.begin(0), started(in_place=True), (SERVER, Params(0)))
    assert sent[1] == Pull(0, False)
    assert role.memory == "shards"


def test_what_it_did_not_wait_for_is_an_error(role):
    with pytest.raises(ProtocolError, match="worker 3 got Params from server 0"):
        drive(role.lease(0, wait=True), (SERVER, Params(0)))
