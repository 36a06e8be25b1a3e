"""What a TCP port does beyond the contract of ports: tensors into their place, liveness, ends, and forks."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import PIPE, Popen
from time import monotonic

import pytest

from paceline.errors import ConfigError, DeadlineError, PeerLostError, ProtocolError
from paceline.messages import Begin, Failed, Params, encode
from paceline.ports import Delivery
from paceline.transport import memory
from paceline.transport.dial import Endpoint
from paceline.transport.handshake import Lane
from paceline.transport.keys import read_key_file
from paceline.transport.piece import Piece, Spec, pack_piece
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from paceline.transport.wire import PIECE_BYTES, FrameWriter, Kind, Wire
from wired import SERVER, WORKER, Pair, frame, insider, pair, until

SIZE = PIECE_BYTES + PIECE_BYTES // 2
SPEC = Spec("uint8", (SIZE,))


def pattern(size: int, seed: int = 0) -> bytearray:
    block = bytes((seed + 31 * i) % 251 for i in range(251))
    return bytearray((block * (size // 251 + 1))[:size])


@pytest.fixture(params=[Wire.PLAIN, Wire.MAC, Wire.TLS], ids=lambda wire: wire.name.lower())
def trust(request: pytest.FixtureRequest, key: Path) -> Trust:
    return Trust(None if request.param is Wire.PLAIN else read_key_file(key), request.param)


@pytest.fixture
def plain() -> Iterator[Pair]:
    with pair(Trust()) as ports:
        yield ports


# --- tensors --------------------------------------------------------------------------------------------------


def test_a_peer_that_is_there_gets_more_lanes() -> None:
    before = set(threading.enumerate())

    def count(name: str) -> int:
        return sum(thread.name == f"paceline {name}" for thread in set(threading.enumerate()) - before)

    with pair(Trust(), lanes=1) as (server, worker, _):
        worker.widen(SERVER, lanes=3)
        worker.widen(SERVER, lanes=2)
        spec, data = Spec("uint8", (40 << 20,)), bytes(range(256)) * (40 << 12)
        place = bytearray(len(data))
        arrival = server.expect(WORKER, 0, spec, memoryview(place))
        worker.start(SERVER, 0, spec, memoryview(data)).wait(10.0)
        arrival.wait(10.0)
        assert place == data
        # both ends are in this process
        until(server, lambda: (count("Sender"), count("Receiver")) == (6, 6))
    with pair(Trust(), lanes=0) as (server, worker, _):
        server.close(flush_s=0.0)
        assert worker.receive(10.0) == Delivery(SERVER, None)
        with pytest.raises(PeerLostError, match="no connection with server 1"):
            worker.widen(SERVER, lanes=1)


@pytest.mark.parametrize("lanes", [1, 2])
def test_tensors_land_in_their_places_in_both_directions_at_once(trust: Trust, lanes: int) -> None:
    with pair(trust, lanes=lanes) as (server, worker, _):
        up, down = pattern(SIZE, 1), pattern(SIZE, 2)
        into_server, into_worker = bytearray(SIZE), bytearray(SIZE)
        arrivals = [
            server.expect(WORKER, 5, SPEC, memoryview(into_server)),
            worker.expect(SERVER, 5, SPEC, memoryview(into_worker)),
        ]
        sendings = [worker.start(SERVER, 5, SPEC, memoryview(up)), server.start(WORKER, 5, SPEC, memoryview(down))]
        for handle in (*arrivals, *sendings):
            handle.wait(20.0)
        assert into_server == up
        assert into_worker == down
        assert all(arrival.is_complete for arrival in arrivals)


def test_many_tensors_of_all_sizes_arrive_beside_messages(plain: Pair) -> None:
    server, worker, _ = plain
    sizes = [0, 1, 3, 4096, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1]
    places = [bytearray(size) for size in sizes]
    arrivals = [server.expect(WORKER, n, Spec("int8", (size,)), memoryview(places[n])) for n, size in enumerate(sizes)]
    data = [pattern(size, n) for n, size in enumerate(sizes)]
    sendings = [worker.start(SERVER, n, Spec("int8", (size,)), memoryview(data[n])) for n, size in enumerate(sizes)]
    worker.send(SERVER, Begin(4))
    for handle in (*sendings, *arrivals):
        handle.wait(10.0)
    assert places == data
    assert server.receive(5.0) == Delivery(WORKER, Begin(4))


def test_a_key_can_be_used_again_once_its_tensor_is_there(plain: Pair) -> None:
    server, worker, _ = plain
    spec, place = Spec("uint8", (4,)), bytearray(4)
    for data in (b"abcd", b"efgh"):
        arrival = server.expect(WORKER, 0, spec, memoryview(place))
        with pytest.raises(ValueError, match="tensor 0 of worker 3 is expected already"):
            server.expect(WORKER, 0, spec, memoryview(bytearray(4)))
        worker.start(SERVER, 0, spec, memoryview(data)).wait(5.0)
        arrival.wait(5.0)
        assert place == data


def test_a_tensor_streams_behind_what_is_released(plain: Pair) -> None:
    server, worker, _ = plain
    place, data = bytearray(SIZE), pattern(SIZE)
    arrival = server.expect(WORKER, 0, SPEC, memoryview(place))
    sending = worker.start(SERVER, 0, SPEC, memoryview(data), released_bytes=PIECE_BYTES)
    until(server, lambda: arrival.num_whole == 1)
    assert place[:PIECE_BYTES] == data[:PIECE_BYTES]
    with pytest.raises(DeadlineError, match=r"tensor 0 of worker 3 was not there after 0.01 s \(1 of 2 pieces were\)"):
        arrival.wait(0.01)
    with pytest.raises(DeadlineError, match=r"server 1 did not have tensor 0 after 0.01 s \(1 of 2 pieces had left\)"):
        sending.wait(0.01)
    sending.release(SIZE)
    sending.wait(5.0)
    arrival.wait(5.0)
    assert place == data


def test_an_unreleased_tensor_holds_up_no_other(plain: Pair) -> None:
    server, worker, _ = plain
    spec, place = Spec("uint8", (3,)), bytearray(3)
    held = worker.start(SERVER, 0, spec, memoryview(b"abc"), released_bytes=0)
    arrival = server.expect(WORKER, 1, spec, memoryview(place))
    worker.start(SERVER, 1, spec, memoryview(b"xyz")).wait(5.0)
    arrival.wait(5.0)
    assert (bytes(place), held.is_taken) == (b"xyz", False)


@pytest.mark.parametrize(
    ("key", "spec", "why"),
    [
        (8, Spec("int32", (2, 3)), "sent tensor 8, which is not expected"),
        (7, Spec("float32", (2, 3)), r"as float32\[2, 3\] instead of int32\[2, 3\]"),
        (7, Spec("int32", (3, 2)), r"as int32\[3, 2\] instead of int32\[2, 3\]"),
        (7, Spec("int32", (6,)), r"as int32\[6\] instead of"),
        (7, Spec("int32", (2, 4)), r"as int32\[2, 4\] instead of"),
    ],
)
def test_a_tensor_that_was_not_expected_like_that_ends_the_peer_before_a_byte_lands(plain: Pair, key: int, spec: Spec, why: str) -> None:
    server, worker, _ = plain
    place = bytearray(24)
    arrival = server.expect(WORKER, 7, Spec("int32", (2, 3)), memoryview(place))
    worker.start(SERVER, key, spec, memoryview(bytes([1]) * spec.size_bytes))
    with pytest.raises(PeerLostError, match=why):
        arrival.wait(5.0)
    assert server.receive(5.0) == Delivery(WORKER, None)
    assert place == bytes(24)


def test_a_piece_that_comes_twice_is_refused() -> None:
    with pair(Trust(), lanes=None) as (server, _, endpoint):
        control, up = insider(endpoint, Trust(), Lane.CONTROL), insider(endpoint, Trust(), Lane.UP)
        until(server, lambda: WORKER in server.peers)
        arrival = server.expect(WORKER, 0, SPEC, memoryview(bytearray(SIZE)))
        writer = FrameWriter(up.seals[0])
        place = pack_piece(Piece(0, 0, SPEC))
        up.sock.sendall(frame(writer, Kind.PLACE, place) + frame(writer, Kind.PIECE, bytes(PIECE_BYTES)))
        up.sock.sendall(frame(writer, Kind.PLACE, place) + writer.header(Kind.PIECE, 0, bytes(PIECE_BYTES)))
        with pytest.raises(PeerLostError, match="sent piece 0 of tensor 0 twice"):
            arrival.wait(5.0)
        control.sock.close()
        up.sock.close()


def test_a_place_that_does_not_fit_is_refused_at_once(plain: Pair) -> None:
    server, worker, _ = plain
    with pytest.raises(ValueError, match=r"the place of uint8\[6291456\] is 6291456 writable bytes, got 3"):
        server.expect(WORKER, 0, SPEC, memoryview(bytearray(3)))
    with pytest.raises(ValueError, match="writable bytes"):
        server.expect(WORKER, 0, Spec("uint8", (3,)), memoryview(b"abc"))
    with pytest.raises(ValueError, match=r"uint8\[6291456\] has 6291456 bytes, got 3"):
        worker.start(SERVER, 0, SPEC, memoryview(b"abc"))


def test_a_withdrawn_place_is_not_written_any_more() -> None:
    with pair(Trust(), lanes=None) as (server, _, endpoint):
        control, up = insider(endpoint, Trust(), Lane.CONTROL), insider(endpoint, Trust(), Lane.UP)
        until(server, lambda: WORKER in server.peers)
        place = bytearray(SIZE)
        arrival = server.expect(WORKER, 0, SPEC, memoryview(place))
        writer = FrameWriter(up.seals[0])
        half = frame(writer, Kind.PLACE, pack_piece(Piece(0, 0, SPEC))) + frame(writer, Kind.PIECE, bytes([1]) * PIECE_BYTES)[:2_000_000]
        up.sock.sendall(half)
        until(server, lambda: place[0] == 1)
        arrival.withdraw()
        before = bytes(place)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            up.sock.sendall(bytes([2]) * 50_000_000)
        assert place == before
        assert server.receive(5.0) == Delivery(WORKER, None)
        assert not [thread.name for thread in threading.enumerate() if thread.name == "paceline Receiver"]
        assert "in the middle of tensor 0 when that was given up" in server.reason(WORKER)
        control.sock.close()
        up.sock.close()


def test_a_tensor_that_is_cut_off_leaves_no_thread_at_its_place_once_the_end_is_told() -> None:
    with pair(Trust(), lanes=None) as (server, _, endpoint):
        control, up = insider(endpoint, Trust(), Lane.CONTROL), insider(endpoint, Trust(), Lane.UP)
        until(server, lambda: WORKER in server.peers)
        place = bytearray(SIZE)
        server.expect(WORKER, 0, SPEC, memoryview(place))
        writer = FrameWriter(up.seals[0])
        half = frame(writer, Kind.PLACE, pack_piece(Piece(0, 0, SPEC))) + frame(writer, Kind.PIECE, bytes([1]) * PIECE_BYTES)[:2_000_000]
        up.sock.sendall(half)
        until(server, lambda: place[0] == 1)
        control.sock.close()
        assert server.receive(5.0) == Delivery(WORKER, None)
        assert not [thread.name for thread in threading.enumerate() if thread.name == "paceline Receiver"]
        up.sock.close()


# --- life and death ---------------------------------------------------------------------------------------------


def test_waiting_for_a_tensor_of_one_who_ends_is_over_at_once(trust: Trust) -> None:
    with pair(trust) as (server, worker, _):
        arrival = server.expect(WORKER, 0, SPEC, memoryview(bytearray(SIZE)))
        sending = server.start(WORKER, 0, SPEC, memoryview(bytearray(SIZE)), released_bytes=0)
        timer = threading.Timer(0.05, lambda: worker.close(flush_s=0.0))
        timer.start()
        began_s = monotonic()
        for handle in (arrival, sending):
            with pytest.raises(PeerLostError, match="worker 3: its connection ended"):
                handle.wait(20.0)
        assert monotonic() - began_s < 5.0
        timer.join()


CHILD = """
import sys
from paceline.messages import Address, Begin
from paceline.transport.dial import Endpoint
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
port = TcpPort(Address("worker", 3), Trust(), silence_s=float(sys.argv[2]))
port.connect(Address("server", 1), Endpoint("127.0.0.1", int(sys.argv[1])), lanes=1)
port.send(Address("server", 1), Begin(1))
while port.receive(60.0) is not None:
    pass
"""


@pytest.fixture
def beside_a_process() -> Iterator[tuple[TcpPort, Popen[bytes]]]:
    server = TcpPort(SERVER, Trust(), silence_s=0.8)
    endpoint = server.listen("127.0.0.1", 0, {WORKER})
    child = Popen([sys.executable, "-c", CHILD, str(endpoint.port), "0.8"], stdin=PIPE)
    try:
        assert server.receive(30.0) == Delivery(WORKER, Begin(1))
        yield server, child
    finally:
        child.kill()
        child.wait(10.0)
        server.close(flush_s=0.0)


def test_a_killed_peer_is_told_at_once(beside_a_process: tuple[TcpPort, Popen[bytes]]) -> None:
    server, child = beside_a_process
    arrival = server.expect(WORKER, 0, SPEC, memoryview(bytearray(SIZE)))
    began_s = monotonic()
    child.kill()
    with pytest.raises(PeerLostError, match="worker 3"):
        arrival.wait(20.0)
    assert server.receive(20.0) == Delivery(WORKER, None)
    assert monotonic() - began_s < 0.7, "it was told by its end, not by its silence"


def test_a_stopped_peer_is_lost_after_its_silence(beside_a_process: tuple[TcpPort, Popen[bytes]]) -> None:
    server, child = beside_a_process
    arrival = server.expect(WORKER, 0, SPEC, memoryview(bytearray(SIZE)))
    began_s = monotonic()
    child.send_signal(signal.SIGSTOP)
    with pytest.raises(PeerLostError, match=r"worker 3: nothing was heard of it for 0.8 s"):
        arrival.wait(20.0)
    assert 0.5 < monotonic() - began_s < 5.0
    assert server.receive(20.0) == Delivery(WORKER, None)
    assert server.reason(WORKER) == "nothing was heard of it for 0.8 s"


def test_one_who_lives_but_does_not_go_on_is_told_apart() -> None:
    """The worker's process computes here, which is to say: its port is not used. Its heartbeats go on all the same."""
    with pair(Trust(), silence_s=0.4) as (server, worker, _):
        until(server, lambda: server.still_s(WORKER) > 1.0)
        worker.send(SERVER, Begin(0))
        assert server.receive(5.0) == Delivery(WORKER, Begin(0))
        until(server, lambda: server.still_s(WORKER) < 0.5)


def test_one_who_waits_for_messages_goes_on() -> None:
    with pair(Trust(), silence_s=0.4) as (server, worker, _):
        waiting = threading.Thread(target=worker.receive, args=(1.2,))
        waiting.start()
        until(server, lambda: not waiting.is_alive())
        assert server.still_s(WORKER) < 0.7


def test_a_queue_is_emptied_while_its_owner_computes(trust: Trust) -> None:
    with pair(trust) as (server, worker, _):
        worker.send(SERVER, Failed(1, "large", "x" * 20_000_000))
        delivery = server.receive(20.0)
        assert delivery is not None
        assert delivery.message == Failed(1, "large", "x" * 20_000_000)


def test_one_who_leaves_messages_unread_for_long_is_not_lost_while_it_lives() -> None:
    """The kernel's own timeout also counts a shut window; it must not be shorter than the patience with one."""
    with pair(Trust(), silence_s=0.3) as (server, worker, _):
        sent = Failed(1, "large", "x" * 20_000_000)
        worker.send(SERVER, sent)
        assert worker.receive(1.5) is None
        assert server.receive(20.0) == Delivery(WORKER, sent)


def test_what_was_sent_before_a_close_arrives_though_the_closer_left_messages_unread(trust: Trust) -> None:
    with pair(trust) as (server, worker, _):
        server.send(WORKER, Params(1))
        sent = Failed(1, "last", "x" * 400_000)
        worker.send(SERVER, sent)
        worker.close()
        assert server.receive(5.0) == Delivery(WORKER, sent)
        assert server.receive(5.0) == Delivery(WORKER, None)


def test_an_attachment_is_a_copy_of_the_receivers_own(plain: Pair) -> None:
    server, worker, _ = plain
    data = pattern(3_500_000)
    fd = memory.create_from("data", data)
    worker.send(SERVER, Params(1), [fd])
    delivery = server.receive(10.0)
    assert delivery is not None
    with memory.map_shared(delivery.attachments[0]) as theirs:
        assert theirs[:] == data
        theirs[:5] = b"other"
    with memory.map_shared(fd) as ours:
        assert ours[:5] == data[:5]
    os.close(fd)
    os.close(delivery.attachments[0])


def test_a_message_is_not_late_because_its_receiver_computed() -> None:
    with pair(Trust(), lanes=None, stall_s=0.2) as (server, _, endpoint):
        control = insider(endpoint, Trust(), Lane.CONTROL)
        until(server, lambda: WORKER in server.peers)
        sent = Failed(1, "large", "x" * 100_000)
        data = frame(FrameWriter(control.seals[0]), Kind.MESSAGE, encode(sent))
        control.sock.sendall(data[:50_000])
        assert server.receive(0.02) is None
        control.sock.sendall(data[50_000:])
        # the server computes for longer than a message may stop
        assert not threading.Event().wait(0.5)
        assert server.receive(5.0) == Delivery(WORKER, sent)
        control.sock.close()


def test_an_attachment_that_is_written_while_it_leaves_harms_no_connection(plain: Pair) -> None:
    server, worker, _ = plain
    fd = memory.create("arena", 8_000_000)
    worker.send(SERVER, Params(1), [fd])
    with memory.map_shared(fd) as arena:
        arena[:] = bytes([1]) * len(arena)
    delivery = server.receive(10.0)
    assert delivery is not None
    assert delivery.message == Params(1), server.reason(WORKER)
    os.close(fd)
    os.close(delivery.attachments[0])


def test_an_attachment_may_be_empty(plain: Pair) -> None:
    server, worker, _ = plain
    fds = [memory.create_from("data", data) for data in (b"", b"full")]
    worker.send(SERVER, Params(1), [*fds, fds[0]])
    delivery = server.receive(5.0)
    assert delivery is not None
    assert [memory.read_all(fd, at_most=9) for fd in delivery.attachments] == [b"", b"full", b""]
    for fd in (*fds, *delivery.attachments):
        os.close(fd)


def test_a_message_that_begins_and_does_not_end_loses_its_sender() -> None:
    with pair(Trust(), lanes=None, stall_s=0.2) as (server, _, endpoint):
        control = insider(endpoint, Trust(), Lane.CONTROL)
        until(server, lambda: WORKER in server.peers)
        control.sock.sendall(frame(FrameWriter(control.seals[0]), Kind.MESSAGE, bytes(100))[:150])
        assert server.receive(5.0) == Delivery(WORKER, None)
        assert server.reason(WORKER) == "a message of it began, and nothing more came for 0.2 s"
        control.sock.close()


def test_a_tensor_that_stops_in_its_middle_loses_its_sender(trust: Trust) -> None:
    with pair(trust, lanes=None, stall_s=0.2) as (server, _, endpoint):
        control, up = insider(endpoint, trust, Lane.CONTROL), insider(endpoint, trust, Lane.UP)
        until(server, lambda: WORKER in server.peers)
        arrival = server.expect(WORKER, 0, SPEC, memoryview(bytearray(SIZE)))
        writer = FrameWriter(up.seals[0])
        up.sock.sendall(frame(writer, Kind.PLACE, pack_piece(Piece(0, 0, SPEC))) + frame(writer, Kind.PIECE, bytes(PIECE_BYTES))[:9999])
        with pytest.raises(PeerLostError, match=r"a tensor did not move for 0.2 s"):
            arrival.wait(5.0)
        control.sock.close()
        up.sock.close()


def test_a_tensor_that_nobody_takes_loses_its_receiver(trust: Trust) -> None:
    with pair(trust, lanes=None, stall_s=0.2) as (server, _, endpoint):
        control, down = insider(endpoint, trust, Lane.CONTROL), insider(endpoint, trust, Lane.DOWN)
        until(server, lambda: WORKER in server.peers)
        spec = Spec("uint8", (64 << 20,))
        departure = server.start(WORKER, 0, spec, memoryview(bytearray(64 << 20)))
        with pytest.raises(PeerLostError, match=r"a tensor did not move for 0.2 s"):
            departure.wait(5.0)
        control.sock.close()
        down.sock.close()


def test_a_lane_that_rests_for_long_is_not_given_up(trust: Trust) -> None:
    with pair(trust, stall_s=0.1) as (server, worker, _):
        assert server.receive(0.5) is None
        spec, place = Spec("uint8", (3,)), bytearray(3)
        arrival = server.expect(WORKER, 0, spec, memoryview(place))
        worker.start(SERVER, 0, spec, memoryview(b"abc")).wait(5.0)
        arrival.wait(5.0)
        assert place == b"abc"


def test_a_peer_may_come_back_only_in_a_new_life(plain: Pair) -> None:
    server, worker, endpoint = plain
    worker.close()
    assert server.receive(5.0) == Delivery(WORKER, None)
    for incarnation in (0, 1):
        again = TcpPort(WORKER, Trust(), incarnation=incarnation)
        if incarnation == 0:
            with pytest.raises(ProtocolError, match="with this name and incarnation was connected before"):
                again.connect(SERVER, endpoint)
        else:
            again.connect(SERVER, endpoint)
            again.send(SERVER, Begin(9))
            assert server.receive(5.0) == Delivery(WORKER, Begin(9))
        again.close()


def test_generations_are_stated_and_never_go_back(plain: Pair) -> None:
    server, worker, endpoint = plain
    server.generation = 2
    server.send(WORKER, Params(1))
    assert worker.receive(5.0) == Delivery(SERVER, Params(1))
    with pytest.raises(ValueError, match="generations only grow: 2 has begun, got 1"):
        server.generation = 1
    newer = TcpPort(WORKER, Trust(), incarnation=1)
    newer.generation = 3
    with pytest.raises(ProtocolError, match=r"worker 3 cannot reach server 1 at 127.0.0.1:.*older generation"):
        newer.connect(SERVER, endpoint)
    newer.close()


def test_a_forked_child_keeps_no_connection_open(plain: Pair, forked_child: Callable[[], AbstractContextManager[None]]) -> None:
    server, worker, _ = plain
    with forked_child():
        worker.send(SERVER, Begin(1))
        worker.close()
        assert server.receive(5.0) == Delivery(WORKER, Begin(1))
        assert server.receive(5.0) == Delivery(WORKER, None)


def test_a_closed_port_leaves_no_thread_and_no_descriptor(trust: Trust) -> None:
    def opened() -> set[str]:
        return {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}

    before = {name for name in opened() if name.startswith("socket")}
    with pair(trust, lanes=2) as (server, worker, _):
        worker.close()
        assert server.receive(5.0) == Delivery(WORKER, None)
    assert {name for name in opened() if name.startswith("socket")} <= before
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("paceline")]


# --- addresses ----------------------------------------------------------------------------------------------------


def test_a_connection_is_made_without_a_wait_for_delayed_acknowledgements(trust: Trust) -> None:
    took_s: list[float] = []
    with pair(trust, lanes=None) as (_, _, endpoint):
        for incarnation in range(8):
            began_s = monotonic()
            with pytest.raises(ProtocolError, match="belongs to no peer"):
                insider(endpoint, trust, Lane.UP, incarnation=incarnation)
            took_s.append(monotonic() - began_s)
    assert min(took_s) < 0.03


def test_nobody_listening_is_said_with_names() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(PeerLostError, match=f"worker 3 cannot reach server 1 at 127.0.0.1:{port}: Connection refused"):
        TcpPort(WORKER, Trust()).connect(SERVER, Endpoint("127.0.0.1", port))


def test_one_who_accepts_but_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began_s = monotonic()
        with pytest.raises(PeerLostError, match=r"no answer within 0.2 s"):
            TcpPort(WORKER, Trust()).connect(SERVER, Endpoint("127.0.0.1", mute.getsockname()[1]), timeout_s=0.2)
        assert monotonic() - began_s < 3.0


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match=r"server 1 cannot listen at 127.0.0.1:.*in use"):
        TcpPort(SERVER, Trust()).listen("127.0.0.1", taken.getsockname()[1], {WORKER})


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_ports_meet_over_ipv6_alone(trust: Trust) -> None:
    server, worker = TcpPort(SERVER, trust), TcpPort(WORKER, trust)
    try:
        endpoint = server.listen("::1", 0, {WORKER})
        assert str(endpoint) == f"[::1]:{endpoint.port}"
        worker.connect(SERVER, endpoint)
        worker.send(SERVER, Begin(6))
        assert server.receive(5.0) == Delivery(WORKER, Begin(6))
    finally:
        worker.close()
        server.close()
