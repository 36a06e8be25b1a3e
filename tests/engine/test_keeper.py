"""What the coordinator's process keeps for its role: the state that waits to be loaded is the one that is handed on."""

from __future__ import annotations

import os

from desk import Desk
from paceline.engine.local.coordinator_main import Keeper
from paceline.messages import Address, Attached, Load, Restate
from paceline.roles.effects import Send
from paceline.transport import memory


def load(desk: Desk, keeper: Keeper, worker: int, state: bytes) -> str:
    """A worker loads a state; in words what comes of it."""
    message = Load(True, False)
    keeper.keep(message, (memory.create_from("state", state),), Address("worker", worker), desk.coordinator)
    return desk.tell(worker, message)


def restated(desk: Desk, keeper: Keeper) -> list[bytes]:
    sends = [keeper.attach(send, desk.coordinator) for send in desk.sent if isinstance(send.message, Restate)]
    return [memory.read_all(int(str(send.attachments[0])), at_most=100) for send in sends]


def test_a_state_that_is_passed_over_does_not_take_the_place_of_one_that_waits():
    before = len(os.listdir("/proc/self/fd"))
    desk, keeper = Desk("async", 1), Keeper()
    job = desk.coordinator.job
    job.is_moving = True  # while the shards are on their way nothing is loaded
    load(desk, keeper, 0, b"the run's")
    desk.hello(1)
    desk.tell(1, Attached())
    load(desk, keeper, 1, b"a late joiner's")
    load(desk, keeper, 7, b"a stranger's")
    assert any("worker 1 joined late and loads a state" in warning for warning in desk.warnings)
    assert restated(desk, keeper) == []
    job.is_moving = False
    desk.push(0)
    assert restated(desk, keeper) == [b"the run's"]
    load(desk, keeper, 0, b"another")
    assert restated(desk, keeper)[-1] == b"another"
    assert len(os.listdir("/proc/self/fd")) == before + 1
    os.close(int(str(keeper.attach(Send(Address("server"), Restate(1, True, False)), desk.coordinator).attachments[0])))
