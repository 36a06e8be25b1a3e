"""Links that fail in one process: what is late comes in order, what is lost is so for the same seed again, a hole tells nobody."""

from __future__ import annotations

import os
from itertools import pairwise
from time import monotonic

import pytest

from paceline.errors import PeerLostError
from paceline.messages import COORDINATOR, Address, Begin, Params
from paceline.ports import Delivery, Port
from paceline.transport import memory
from paceline.transport.faulty import Faults, FaultyExchange

WORKER, OTHER = Address("worker", 3), Address("worker", 4)
NUM = 200


def all_of(port: Port) -> list[int]:
    """The epochs that have come, until nothing does for a while."""
    heard: list[int] = []
    while (delivery := port.receive(0.05)) is not None:
        assert isinstance(delivery.message, Begin)
        heard.append(delivery.message.epoch)
    return heard


def heard_through(faults: Faults, seed: int = 0, *, chatter: bool = False) -> list[int]:
    """What arrives of `NUM` messages; with `chatter`, others speak meanwhile."""
    exchange = FaultyExchange(seed, faults)
    coordinator, worker, other = exchange.port(COORDINATOR), exchange.port(WORKER), exchange.port(OTHER)
    for epoch in range(NUM):
        worker.send(COORDINATOR, Begin(epoch))
        if chatter:
            other.send(WORKER, Begin(epoch))
            coordinator.send(OTHER, Params(epoch))
    return all_of(coordinator)


def test_what_is_late_comes_later_and_in_order() -> None:
    exchange = FaultyExchange(0, Faults(delay_s=0.02, jitter_s=0.02))
    coordinator, worker = exchange.port(COORDINATOR), exchange.port(WORKER)
    began_s = monotonic()
    for epoch in range(NUM):
        worker.send(COORDINATOR, Begin(epoch))
    assert all_of(coordinator) == list(range(NUM))
    assert monotonic() - began_s >= 0.02
    exchange.faults = Faults(delay_s=60.0)
    worker.send(COORDINATOR, Begin(NUM))
    assert coordinator.receive(0.01) is None


def test_the_end_comes_behind_what_was_said() -> None:
    exchange = FaultyExchange(0, Faults(delay_s=0.01))
    coordinator, worker = exchange.port(COORDINATOR), exchange.port(WORKER)
    worker.send(COORDINATOR, Begin(0))
    worker.close()
    assert [coordinator.receive(1.0) for _ in range(2)] == [Delivery(WORKER, Begin(0)), Delivery(WORKER, None)]


@pytest.mark.parametrize("faults", [Faults(lost=0.3), Faults(doubled=0.3), Faults(lost=0.1, doubled=0.1)])
def test_the_same_seed_loses_and_doubles_the_same_messages_whatever_others_say(faults: Faults) -> None:
    heard = heard_through(faults)
    assert heard == sorted(heard) != list(range(NUM))
    assert heard_through(faults, chatter=True) == heard
    assert heard_through(faults, seed=1) != heard
    missing, again = NUM - len(set(heard)), sum(one == other for one, other in pairwise(heard))
    assert NUM * faults.lost / 2 <= missing <= NUM * faults.lost * 2
    assert NUM * faults.doubled / 2 <= again <= NUM * faults.doubled * 2


def test_a_hole_is_one_way_and_tells_nobody() -> None:
    exchange = FaultyExchange(0)
    coordinator, worker = exchange.port(COORDINATOR), exchange.port(WORKER)
    exchange.between[WORKER, COORDINATOR] = Faults(hole=True)
    worker.send(COORDINATOR, Begin(0))
    coordinator.send(WORKER, Params(1))
    assert worker.receive(1.0) == Delivery(COORDINATOR, Params(1))
    worker.close()
    assert coordinator.receive(0.02) is None
    with pytest.raises(PeerLostError, match="worker 3"):
        coordinator.send(WORKER, Params(2))
    coordinator.close()
    again = exchange.port(WORKER)
    again.send(COORDINATOR, Begin(1))


def test_what_is_doubled_brings_attachments_of_its_own_and_what_is_lost_or_late_leaves_none_open() -> None:
    exchange = FaultyExchange(0, Faults(doubled=1.0))
    coordinator, worker = exchange.port(COORDINATOR), exchange.port(WORKER)
    mine = memory.create("arena", 100)
    num_open = len(os.listdir("/proc/self/fd"))
    worker.send(COORDINATOR, Begin(0), (mine,))
    deliveries = [coordinator.receive(1.0) for _ in range(2)]
    copies = [fd for delivery in deliveries if delivery is not None for fd in delivery.attachments]
    assert len({mine, *copies}) == 3
    for fd in copies:
        os.close(fd)
    for faults in (Faults(lost=1.0), Faults(delay_s=60.0)):
        exchange.faults = faults
        worker.send(COORDINATOR, Begin(1), (mine,))
    coordinator.close()
    assert len(os.listdir("/proc/self/fd")) == num_open
    os.close(mine)
