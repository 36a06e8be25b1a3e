"""A server process: what it does while nothing waits, and how long its shard was busy."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from paceline.engine.local.serving import IDLE_S, ServerProcess
from paceline.errors import ConfigError
from paceline.messages import COORDINATOR, SUPERVISOR, Accept, Address, Fold, Halt, Measured, Member, Message, Pull
from paceline.ports import Delivery
from paceline.roles.effects import Effect, Send
from paceline.roles.server import Server
from paceline.transport.shm import SocketPort

WORKER = Address("worker")


class Port:
    """Hands out what is planned: a delivery, or None for "nothing has come yet"."""

    def __init__(self, *plan: Delivery | None) -> None:
        self.plan = list(plan)
        self.timeouts: list[float] = []
        self.sent: list[Message] = []
        self.told: list[tuple[Address, Message]] = []

    def receive(self, timeout_s: float) -> Delivery | None:
        self.timeouts.append(timeout_s)
        return self.plan.pop(0) if self.plan else Delivery(COORDINATOR, Halt(0, ""))

    def send(self, to: Address, message: Message, attachments: tuple[int, ...] = ()) -> None:
        self.sent.append(message)
        self.told.append((to, message))


class Role:
    """Stands in for the server's role: an update a Fold, measured; some windows to copy when idle."""

    def __init__(self, windows: int = 0) -> None:
        self.version, self.windows = 0, windows
        self.done: list[str] = []

    def handle(self, sender: Address, message: Message, attachments: tuple[object, ...]) -> list[Effect]:
        self.done.append(type(message).__name__)
        if isinstance(message, Fold):
            self.version = message.version
            return [Send(COORDINATOR, Measured(message.version, 1.0, 2.0, 3.0))]
        return []

    def left(self, who: Address) -> list[Effect]:
        return []

    def idle(self) -> bool:
        self.windows -= 1
        if self.windows >= 0:
            self.done.append("idle")
        return self.windows > 0


def play(role: Role, *plan: Delivery | None) -> Port:
    port = Port(*plan)
    process = ServerProcess(cast(SocketPort, port), Address("server", 0))
    process._role = cast(Server, role)
    process.run()
    return port


def fold(version: int) -> Delivery:
    return Delivery(COORDINATOR, Fold(version, (), 1.0, 1.0))


def test_while_nothing_waits_a_window_is_copied_and_the_port_asked_again():
    role = Role(windows=3)
    port = play(role, None, fold(1), None)
    assert role.done == ["idle", "idle", "Fold", "idle"]
    assert port.timeouts[:2] == [0.0, 0.0]
    assert IDLE_S in port.timeouts


def test_what_has_come_is_done_before_anything_may_wait():
    role = Role(windows=1)
    play(role, Delivery(WORKER, Pull(1, copy=True)), fold(1), None)
    assert role.done == ["idle", "Fold", "Pull"]


def test_a_measured_update_says_how_long_the_shard_was_busy_since_the_one_before(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("paceline.engine.local.serving.perf_counter", lambda: float(next(clock)))
    accept = Delivery(COORDINATOR, Accept(Member(0, 0, 0, 0, 1.0)))
    port = play(Role(), fold(1), None, accept, accept, fold(2), None, fold(3), None)
    assert [message.busy_s for message in port.sent if isinstance(message, Measured)] == pytest.approx([1.0, 3.0, 1.0])


@pytest.mark.parametrize(("lost", "told"), [(COORDINATOR, [Halt(4, "server 0 lost the coordinator")]), (SUPERVISOR, [])])
def test_a_server_that_loses_the_coordinator_tells_the_workers_that_are_left_before_it_ends(lost, told):
    others = [Address("worker", number) for number in (3, 5)]
    seen = [Delivery(worker, Pull(0, copy=True)) for worker in (WORKER, *others)]
    port = play(Role(), *seen, None, Delivery(others[0], None), Delivery(lost, None))
    assert sorted(port.told) == [(who, message) for who in (WORKER, others[1]) for message in told]


def test_a_device_whose_memory_does_not_suffice_is_named():
    class Large(Role):
        def handle(self, sender: Address, message: Message, attachments: tuple[object, ...]) -> list[Effect]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.\nMore of it")

    sentence = "--server-device cpu has too little memory for this shard: CUDA out of memory. Tried to allocate 1 GiB."
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        play(Large(), fold(1))
