"""What a group is told, and by how many messages."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from paceline.messages import Address, Message
from paceline.pace import parse_pace
from paceline.roles.effects import Effect, JobSettings, Send
from routines import Data, Habits, Trainee
from world import Mishap, Observer, World

NUM_WORKERS = 3


class Listener(Observer):
    """What workers sent to the coordinator, by kind, and what it sent to them in each event."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.answers: list[Counter[str]] = []

    def before(self, sender: Address, message: Message | None) -> None:
        if sender.role == "worker":
            self.sent[type(message).__name__] += 1

    def after(self, effects: list[Effect]) -> None:
        to_workers = [effect.message for effect in effects if isinstance(effect, Send) and effect.to.role == "worker"]
        self.answers.append(Counter(type(message).__name__ for message in to_workers))


def listened(seed: int, mishaps: list[Mishap]) -> Listener:
    """A group's run of ten updates, listened to."""
    settings = JobSettings(NUM_WORKERS, 1, parse_pace("sync"), patience_s=16.0, route="collective")
    listener, habits = Listener(), Habits(Data((1,) * (10 * NUM_WORKERS), static=True), num_epochs=1)
    world = World(settings, random.Random(seed), lambda process: Trainee(process, habits).main(), observer=listener)
    for worker in range(NUM_WORKERS):
        world.join(worker)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grouped.GLITCH", 0.0)
        assert world.run(mishaps).code == 0
    return listener


@pytest.mark.parametrize("at", [45, 75, 90])
@pytest.mark.parametrize("seed", range(3))
def test_a_change_of_pace_is_one_entry_of_the_order_that_nobody_answers_or_waits_for(seed: int, at: int) -> None:
    changed = listened(seed, [Mishap(at, "pace", pace=parse_pace("sync,grace_s=2"))])
    plain = listened(seed, [])
    each_step = ("Ready", "PartNorm", "Begin", "Convened", "Formed", "Handed", "Broken")
    assert {kind: changed.sent[kind] for kind in each_step} == {kind: plain.sent[kind] for kind in each_step}
    assert changed.sent["Ready"] == changed.sent["PartNorm"] == 10 * NUM_WORKERS
    assert [answer["SetPace"] for answer in changed.answers if answer["SetPace"]] == [NUM_WORKERS]
    for kind in ("Fold", "Factor", "Start", "Form", "Disband"):
        assert sum(answer[kind] for answer in changed.answers) == sum(answer[kind] for answer in plain.answers)
