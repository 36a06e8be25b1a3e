"""The driver of a worker's conversations: what it sends, and how each end of the run comes to the script."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from paceline.config import resolve
from paceline.engine import link as link_module
from paceline.engine.link import Link, Member
from paceline.engine.local.blame import LEFT_ALONE, failed_of, failure_of
from paceline.errors import DeadlineError, PeerLostError, ProtocolError, RunEnded
from paceline.messages import COORDINATOR, Address, Attached, Convene, Disband, Drawn, Free, Halt, Message, Params, Pull, Welcome
from paceline.pace import parse_pace
from paceline.roles.effects import Send
from paceline.roles.talk import Receive, Talk
from paceline.roles.worker import WorkerRole
from paceline.transport.faulty import Faults, FaultyExchange

WORKER, SERVER = Address("worker", 1), Address("server", 0)


class Peers:
    """A link, with its coordinator and its server to be played by the test."""

    def __init__(self) -> None:
        self.exchange = exchange = FaultyExchange(0)
        self.coordinator, self.server = exchange.port(COORDINATOR), exchange.port(SERVER)
        resolved = resolve(cores=2, stamp="now", command_line={"workers": 2, "servers": 2})
        self.link = Link(exchange.port(WORKER), Member(1, 0, 2, 2), resolved)

    def close(self) -> None:
        for port in (self.coordinator, self.server, self.link):
            port.close()


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
    monkeypatch.setattr(link_module, "LEAST_WAIT_S", 0.01)
    monkeypatch.setattr(link_module, "REASON_S", 0.05)
    peers = Peers()
    yield peers
    peers.close()


def hear() -> Talk[None]:
    """Take whatever the server says."""
    yield Receive("say something")


def ask(to: Address, why: str = "answer") -> Talk[int]:
    """Pull from somebody and return the version."""
    yield Send(to, Pull(3, copy=False))
    delivery = yield Receive(why)
    assert isinstance(delivery.message, Params)
    return delivery.message.version


def test_a_conversation_is_driven_to_its_value(peers: Peers) -> None:
    peers.server.send(WORKER, Params(7))
    assert peers.link.drive(ask(SERVER)) == 7
    delivery = peers.server.receive(0.0)
    assert delivery is not None
    assert (delivery.sender, delivery.message) == (WORKER, Pull(3, copy=False))


def test_a_server_that_holds_no_shard_may_go(peers: Peers) -> None:
    spare = peers.exchange.port(Address("server", 1))

    def talk() -> Talk[int]:
        yield Receive("welcome this worker")
        spare.close()
        return (yield from ask(SERVER))

    peers.coordinator.send(WORKER, Welcome(False, 2, 1, 0, parse_pace("sync")))
    peers.server.send(WORKER, Params(7))
    assert peers.link.drive(talk()) == 7


def test_bytes_and_descriptors_travel_as_attachments(peers: Peers) -> None:
    shared = peers.link.share("arena", 4096)

    def talk() -> Talk[None]:
        yield Send(COORDINATOR, Drawn(0, (), (), 0), (b"indices", memoryview(b"more"), shared.attachment))

    peers.link.drive(talk())
    peers.link.let_go(shared.attachment)
    delivery = peers.coordinator.receive(0.0)
    assert delivery is not None
    first, second, arena = delivery.attachments
    assert (peers.link.read(first), peers.link.read(second)) == (b"indices", b"more")
    shared.memory[4095] = 9
    assert peers.link.map(arena, 4096)[4095] == 9
    for fd in delivery.attachments:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_an_attachment_of_another_kind_is_a_mistake(peers: Peers) -> None:
    def talk() -> Talk[None]:
        yield Send(COORDINATOR, Attached(), ("text",))

    with pytest.raises(TypeError, match="got str"):
        peers.link.drive(talk())


def test_memory_that_is_too_small_is_refused(peers: Peers) -> None:
    shared = peers.link.share("arena", 4096)
    with pytest.raises(ProtocolError, match="4096 bytes of memory, 8192 are needed"):
        peers.link.map(shared.attachment, 8192)


def test_a_halt_is_the_end_of_the_run_with_its_code_and_reason(peers: Peers) -> None:
    peers.coordinator.send(WORKER, Halt(5, "waited for worker 0"))
    with pytest.raises(RunEnded, match="waited for worker 0") as ended:
        peers.link.drive(ask(SERVER))
    assert ended.value.code == 5


def test_a_server_that_is_silent_is_named_with_what_was_wanted(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.link, "_patience_s", 0.02)
    with pytest.raises(DeadlineError, match=r"worker 1 waited 0.02 s for server 0 to send its parameters"):
        peers.link.drive(ask(SERVER, "send its parameters"))


def test_the_coordinator_has_more_time_than_the_servers(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.link, "_patience_s", 0.005)
    with pytest.raises(DeadlineError, match=r"worker 1 waited 0.06 s for coordinator to let this worker go on"):
        peers.link.drive(ask(COORDINATOR, "let this worker go on"))


@pytest.mark.parametrize("faults", [Faults(hole=True), Faults(lost=1.0)], ids=["hole", "lost"])
@pytest.mark.parametrize("way", [(WORKER, SERVER), (SERVER, WORKER)], ids=["out", "in"])
def test_whoever_is_not_reached_or_not_heard_is_named(
    peers: Peers, monkeypatch: pytest.MonkeyPatch, faults: Faults, way: tuple[Address, Address]
) -> None:
    monkeypatch.setattr(peers.link, "_patience_s", 0.02)
    peers.exchange.between[way] = faults
    with pytest.raises(DeadlineError, match=r"worker 1 waited 0.02 s for server 0 to send its parameters"):
        peers.link.drive(ask(SERVER, "send its parameters"))
    asked, answered = peers.server.receive(0.0), way == (SERVER, WORKER)
    assert (asked is not None) == answered
    peers.server.send(WORKER, Params(7))
    with pytest.raises(DeadlineError) if answered else nullcontext():
        peers.link.drive(hear())


def test_an_answer_that_comes_late_is_waited_for_and_one_that_comes_twice_is_noticed(peers: Peers) -> None:
    peers.exchange.between[SERVER, WORKER] = Faults(delay_s=0.02, jitter_s=0.02, doubled=1.0)
    role = WorkerRole(1, 0, 1)
    peers.server.send(WORKER, Params(3))
    peers.link.drive(role.pull())
    assert role.versions == [3]
    with pytest.raises(ProtocolError, match="worker 1 got Params from server 0, which it did not wait for"):
        peers.link.drive(role.lease(0, wait=True))


@pytest.mark.parametrize("lost", ["coordinator", "server"])
def test_a_lost_peer_is_named_with_what_was_wanted(peers: Peers, lost: str) -> None:
    getattr(peers, lost).close()
    with pytest.raises(PeerLostError, match=f"worker 1 lost {lost}.* to answer"):
        peers.link.drive(ask(SERVER if lost == "coordinator" else COORDINATOR))


def test_sending_to_a_lost_peer_names_it(peers: Peers) -> None:
    peers.server.close()
    with pytest.raises(PeerLostError, match=r"worker 1 cannot go on: .* server 0"):
        peers.link.drive(ask(SERVER))


@pytest.mark.parametrize("lost", ["coordinator", "server"])
def test_the_reason_of_a_loss_counts_more_than_the_loss(peers: Peers, lost: str) -> None:
    if lost == "server":
        peers.server.close()
    peers.coordinator.send(WORKER, Halt(1, "worker 0 raised"))
    if lost == "coordinator":
        peers.coordinator.close()
    with pytest.raises(RunEnded, match="worker 0 raised"):
        peers.link.drive(ask(SERVER))


@pytest.mark.parametrize("how", ["receiving", "sending"])
def test_a_server_that_ended_without_the_coordinator_is_not_named_alone(peers: Peers, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "REASON_S", 10.0)
    if how == "sending":
        peers.server.close()
    else:
        peers.coordinator.send(WORKER, Params(0))  # something to take before the ends

    def talk() -> Talk[None]:
        if how == "receiving":
            yield Receive("begin")
            peers.server.close()
            peers.coordinator.close()
            yield Receive("send its parameters")
        else:
            peers.coordinator.close()
            yield Send(SERVER, Pull(3, copy=False))

    with pytest.raises(PeerLostError, match=r"worker 1 .*server 0.* and the coordinator"):
        peers.link.drive(talk())


def test_a_servers_own_word_counts_more_than_its_end(peers: Peers) -> None:
    peers.server.send(WORKER, Halt(4, "server 0 lost the coordinator"))
    peers.server.close()
    with pytest.raises(PeerLostError, match=r"^worker 1 cannot go on: server 0 lost the coordinator$") as lost:
        peers.link.drive(ask(COORDINATOR))
    # to a supervisor that buries this worker before the coordinator, it is not the cause
    assert failure_of(failed_of(lost.value, WORKER, "train.py")).rank == LEFT_ALONE


def test_a_coordinator_that_cannot_be_sent_to_is_named_once(peers: Peers) -> None:
    peers.coordinator.close()
    with pytest.raises(PeerLostError) as lost:
        peers.link.drive(ask(COORDINATOR))
    assert str(lost.value).count("coordinator") == 1


def test_a_gradient_that_does_not_reach_its_server_names_the_coordinator_too(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(*_: object) -> None:
        raise PeerLostError("server 0 was lost in mid-transfer")

    monkeypatch.setattr(peers.link._port, "send", send)
    peers.coordinator.close()
    with pytest.raises(PeerLostError, match=r"server 0 was lost in mid-transfer, and the coordinator is gone$"):
        peers.link.drive(ask(COORDINATOR))


def test_a_closed_link_is_seen_by_its_peers(peers: Peers) -> None:
    peers.link.close()
    for port in (peers.coordinator, peers.server):
        delivery = port.receive(0.0)
        assert delivery is not None
        assert delivery.message is None


@pytest.mark.parametrize("end", [Convene(2), Disband(gives=False), Halt(4, "it is over"), None], ids=lambda end: type(end).__name__)
def test_what_calls_a_group_off_is_seen_and_stays_to_be_received_behind_what_came_before(end: Message | None, peers: Peers) -> None:
    assert not peers.link.is_called_off()
    peers.coordinator.send(WORKER, Free())
    assert not peers.link.is_called_off()
    if end is None:
        peers.coordinator.close()
    else:
        peers.coordinator.send(WORKER, end)
    assert peers.link.is_called_off()
    assert peers.link.is_called_off()
    assert [peers.link._take(1.0).message for _ in range(2)] == [Free(), end]
    assert not peers.link.is_called_off()


def test_the_end_of_a_server_calls_no_group_off(peers: Peers) -> None:
    peers.server.close()
    assert not peers.link.is_called_off()
    assert peers.link._take(1.0).message is None
