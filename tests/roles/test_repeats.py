"""What is announced to the coordinator may come twice, which no port lets happen: it is passed over, and no gradient counts again."""

from __future__ import annotations

import random

from laws import Referee
from paceline.messages import (
    COORDINATOR,
    Address,
    Attached,
    Begin,
    Enter,
    LeaseRequest,
    Meet,
    Message,
    Ready,
    SnapshotRequest,
)
from randomworlds import play_by
from world import World

SHARE = 0.3
ANSWERED = (Attached, Begin, Enter, LeaseRequest, Meet, SnapshotRequest)
"""What a worker waits for the answer of; everything else is said to the coordinator without one."""


class Repeating(World):
    """Some of what is said to the coordinator without an answer comes twice, `num_repeated` times so far."""

    num_repeated = 0

    def post(self, sender: Address, to: Address, message: Message | None, attachments: tuple[object, ...]) -> None:
        super().post(sender, to, message, attachments)
        is_announcement = to == COORDINATOR and message is not None and not isinstance(message, ANSWERED)
        if is_announcement and self.random.random() < SHARE:
            self.num_repeated += 1
            super().post(sender, to, message, attachments)


class Deaf(Referee):
    """Does not count a gradient again that it has seen arrive."""

    def before(self, sender: Address, message: Message | None) -> None:
        if not isinstance(message, Ready) or (sender.id, message.incarnation, message.step) not in self.arrived:
            super().before(sender, message)


def test_what_is_announced_twice_is_answered_and_counted_once() -> None:
    counts: list[int] = []
    for seed in range(25):
        world = play_by(random.Random(seed), Repeating, Deaf)
        assert isinstance(world, Repeating)
        counts.append(world.num_repeated)
    assert sum(counts) > 500, counts
    assert sum(count > 0 for count in counts) >= 20, counts
