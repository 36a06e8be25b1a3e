"""One test for each attack that a port on a network must withstand: who has no key gets nowhere, who has one can do little harm."""

from __future__ import annotations

import base64
import os
import resource
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from paceline.cli import main
from paceline.errors import ConfigError, PacelineError, PeerLostError, ProtocolError
from paceline.messages import COORDINATOR, Begin, Failed, Params, encode
from paceline.ports import Delivery
from paceline.transport import memory, reception
from paceline.transport.dial import Endpoint
from paceline.transport.handshake import Lane
from paceline.transport.keys import MEMBER_NAME, read_key_file, write_key_file
from paceline.transport.piece import Spec
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust, key_of, trust_for
from paceline.transport.wire import MAX_MEMORY_BYTES, MAX_MESSAGE_BYTES, FrameWriter, Kind, Wire
from proxy import Weather
from wired import CONTROL, SERVER, UP, WORKER, Pair, frame, insider, is_closed, pair, stranger, through, until

BOMB = zlib.compress(bytes(30_000_000))
"""30 kB that would be 30 MB."""


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "job.key"
    write_key_file(path)
    return path


@pytest.fixture(scope="module")
def old_key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "last-job.key"
    write_key_file(path)
    return path


@pytest.fixture(params=[Wire.MAC, Wire.TLS], ids=["mac", "tls"])
def wire(request: pytest.FixtureRequest) -> Wire:
    return request.param


@pytest.fixture
def trust(key_file: Path, wire: Wire) -> Trust:
    return Trust(read_key_file(key_file), wire)


@pytest.fixture
def mac(key_file: Path) -> Trust:
    return Trust(read_key_file(key_file), Wire.MAC)


@pytest.fixture
def unmet(trust: Trust) -> Iterator[Pair]:
    """A server that listens with a key, and a worker that has not connected."""
    with pair(trust, lanes=None, silence_s=0.8) as ports:
        yield ports


def turned_away(ports: Pair, trust: Trust) -> str:
    """What a worker with this trust is told."""
    intruder = TcpPort(WORKER, trust)
    try:
        with pytest.raises((ProtocolError, PeerLostError)) as told:
            intruder.connect(SERVER, ports.endpoint, timeout_s=5.0)
    finally:
        intruder.close()
    assert ports.server.receive(0.02) is None
    assert not ports.server.peers
    return str(told.value)


def serves_its_own(ports: Pair) -> None:
    """The server still takes in the peer it expects."""
    ports.worker.connect(SERVER, ports.endpoint)
    ports.worker.send(SERVER, Begin(7))
    assert ports.server.receive(5.0) == Delivery(WORKER, Begin(7))


# --- keys ---------------------------------------------------------------------------------------------------------


def test_without_a_key_nobody_gets_in(unmet: Pair) -> None:
    told = turned_away(unmet, Trust())
    assert "worker 3 cannot reach server 1 at 127.0.0.1:" in told
    assert "key file" in told
    until(unmet.server, lambda: len(unmet.server.refusals) == 1)
    assert next(iter(unmet.server.refusals)).startswith("127.0.0.1: ")
    serves_its_own(unmet)


def test_with_the_key_of_an_old_job_nobody_gets_in(unmet: Pair, old_key_file: Path, wire: Wire) -> None:
    told = turned_away(unmet, Trust(read_key_file(old_key_file), wire))
    assert "same key file" in told
    serves_its_own(unmet)


def test_one_wrong_bit_in_the_key_is_another_key(unmet: Pair, key_file: Path, wire: Wire, tmp_path: Path) -> None:
    """The certificates are right, so with TLS it is the handshake inside that refuses."""
    secret = bytearray(read_key_file(key_file).secret)
    right = base64.b64encode(secret).decode()
    secret[31] ^= 1
    wrong = tmp_path / "wrong.key"
    wrong.touch(mode=0o600)
    wrong.write_text(key_file.read_text().replace(right, base64.b64encode(secret).decode()))
    assert "do not have the same key" in turned_away(unmet, Trust(read_key_file(wrong), wire))
    serves_its_own(unmet)


def test_a_server_without_the_key_learns_nothing_and_is_refused(key_file: Path, old_key_file: Path, wire: Wire) -> None:
    with pair(Trust(read_key_file(old_key_file), wire), lanes=None) as ports:
        turned_away(ports, Trust(read_key_file(key_file), wire))


def test_tls_without_a_certificate_of_the_job_ends_before_our_own_bytes(key_file: Path) -> None:
    with pair(Trust(read_key_file(key_file), Wire.TLS), lanes=None) as ports:
        context = ssl.create_default_context(cadata=read_key_file(key_file).authority)
        with stranger(ports.endpoint) as raw, pytest.raises(ssl.SSLError, match=r"(?i)certificate required"):  # noqa: SIM117
            with context.wrap_socket(raw, server_hostname=MEMBER_NAME) as sock:
                sock.recv(1)
        serves_its_own(ports)


def test_tls_below_1_3_is_not_spoken(key_file: Path) -> None:
    with pair(Trust(read_key_file(key_file), Wire.TLS), lanes=None) as ports:
        context = read_key_file(key_file).tls(server_side=False)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
        with stranger(ports.endpoint) as raw, pytest.raises(ssl.SSLError, match=r"(?i)protocol version"):
            context.wrap_socket(raw, server_hostname=MEMBER_NAME)


# --- replays and changes on the way ---------------------------------------------------------------------------------


def test_a_recorded_join_opens_nothing(mac: Trust) -> None:
    with through(mac, lanes=0) as (ports, proxy):
        recorded = [bytes(said) for said in proxy.said]
        ports.worker.close()
        assert ports.server.receive(5.0) == Delivery(WORKER, None)
        for said in recorded:
            with stranger(ports.endpoint) as replay:
                replay.sendall(said)
                assert replay.recv(40)[:4] == b"PLNh"
                assert replay.recv(100)[-32:] == bytes(32), "no proof is given for a replay"
                assert is_closed(replay)
        assert ports.server.receive(0.02) is None
        assert any("do not have the same key" in refusal for refusal in ports.server.refusals)


def test_a_recorded_tls_connection_opens_nothing(key_file: Path) -> None:
    with through(Trust(read_key_file(key_file), Wire.TLS), lanes=0) as (ports, proxy):
        recorded = bytes(proxy.said[0])
        ports.worker.close()
        assert ports.server.receive(5.0) == Delivery(WORKER, None)
        with stranger(ports.endpoint) as replay:
            replay.sendall(recorded)
            while not is_closed(replay):
                continue
        assert ports.server.receive(0.02) is None


def test_a_life_that_has_ended_cannot_be_joined_again_even_with_the_key(unmet: Pair, trust: Trust) -> None:
    serves_its_own(unmet)
    unmet.worker.close()
    assert unmet.server.receive(5.0) == Delivery(WORKER, None)
    assert "with this name and incarnation was connected before" in turned_away(unmet, trust)


def test_a_replayed_frame_loses_its_connection_and_is_not_heard_twice(mac: Trust) -> None:
    with pair(mac, lanes=None) as ports:
        control = insider(ports.endpoint, mac, Lane.CONTROL)
        control.sock.sendall(frame(FrameWriter(control.seals[0]), Kind.MESSAGE, encode(Begin(1))) * 2)
        assert ports.server.receive(5.0) == Delivery(WORKER, Begin(1))
        assert ports.server.receive(5.0) == Delivery(WORKER, None)
        assert "replayed" in ports.server.reason(WORKER)
        control.sock.close()


@pytest.mark.parametrize("number", [0, 6, 8, 16, 25, 40, 50, 70], ids=lambda number: f"byte-{number}")
def test_a_byte_that_is_changed_on_the_way_ends_the_connection_before_it_is_used(trust: Trust, number: int) -> None:
    with through(trust, lanes=0) as (ports, proxy):
        proxy.spoiled, proxy.outward = {CONTROL}, Weather(harm="flip", first=number)
        ports.worker.send(SERVER, Failed(1, "x" * 200))
        assert ports.server.receive(5.0) == Delivery(WORKER, None)


def test_a_tensor_that_is_changed_on_the_way_is_never_complete(trust: Trust) -> None:
    with through(trust, lanes=1) as (ports, proxy):
        spec = Spec("uint8", (100_000,))
        arrival = ports.server.expect(WORKER, 0, spec, memoryview(bytearray(100_000)))
        proxy.spoiled, proxy.outward = {UP}, Weather(harm="flip", first=9_999)
        ports.worker.start(SERVER, 0, spec, memoryview(bytes(100_000)))
        with pytest.raises(PeerLostError, match="tensor 0 will not come from worker 3"):
            arrival.wait(5.0)
        assert not arrival.is_complete


# --- lies of somebody who holds the key -----------------------------------------------------------------------------


class Forger:
    """Writes single frames whose seal is right and whose fields are not."""

    FIELDS = struct.Struct("<4sBBHQQQ16s")

    def __init__(self, ports: Pair, trust: Trust, lane: Lane = Lane.CONTROL) -> None:
        self.lines = [insider(ports.endpoint, trust, Lane.CONTROL)]
        if lane is not Lane.CONTROL:
            self.lines.append(insider(ports.endpoint, trust, lane))
        until(ports.server, lambda: WORKER in ports.server.peers)

    def write(self, kind: int, payload: bytes, *, length: int | None = None) -> None:
        line = self.lines[-1]
        seal = line.seals[0]
        fields = self.FIELDS.pack(b"PLNf", 1, kind, 0, 0, 0, len(payload) if length is None else length, seal.payload(0, payload))
        line.sock.sendall(fields + seal.header(0, fields) + payload)

    def close(self) -> None:
        for line in self.lines:
            line.sock.close()


@pytest.fixture
def lied_to(mac: Trust) -> Iterator[Pair]:
    with pair(mac, lanes=None, silence_s=0.8) as ports:
        yield ports


def loses_the_liar(ports: Pair, why: str) -> None:
    assert ports.server.receive(5.0) == Delivery(WORKER, None)
    assert why in ports.server.reason(WORKER)


@pytest.mark.parametrize(
    "length", [MAX_MESSAGE_BYTES + 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1], ids=["cap+1", "1T", "int64", "minus-one"]
)
def test_a_length_that_lies_costs_no_memory_and_ends_the_peer(lied_to: Pair, mac: Trust, length: int) -> None:
    forger = Forger(lied_to, mac)
    tracemalloc.start()
    try:
        forger.write(Kind.MESSAGE, b"", length=length)
        loses_the_liar(lied_to, f"claims {length} bytes, at most {MAX_MESSAGE_BYTES}")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    forger.close()


def test_a_frame_that_is_cut_off_is_an_end_and_no_message(lied_to: Pair, mac: Trust) -> None:
    forger = Forger(lied_to, mac)
    forger.write(Kind.MESSAGE, encode(Begin(1))[:-1], length=len(encode(Begin(1))))
    forger.close()
    loses_the_liar(lied_to, "its connection ended")


@pytest.mark.parametrize("size", [MAX_MEMORY_BYTES + 1, (1 << 63) - 1, (1 << 64) - 1])
def test_an_attachment_that_lies_about_its_size_ends_the_peer(lied_to: Pair, mac: Trust, size: int) -> None:
    forger = Forger(lied_to, mac)
    forger.write(Kind.MEMORY, struct.pack("<Q", size))
    loses_the_liar(lied_to, f"an attachment claims {size} bytes, at most {MAX_MEMORY_BYTES} are taken")
    forger.close()


def test_an_attachment_gets_no_byte_more_than_it_claimed(lied_to: Pair, mac: Trust) -> None:
    control = insider(lied_to.endpoint, mac, Lane.CONTROL)
    writer = FrameWriter(control.seals[0])
    control.sock.sendall(frame(writer, Kind.MEMORY, struct.pack("<Q", 10)) + frame(writer, Kind.PART, bytes(11)))
    loses_the_liar(lied_to, "an attachment has more bytes than it claimed")
    control.sock.close()


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (struct.pack("<QIBBH8Q", 0, 0, 200, 1, 0, 6, *[0] * 7), "dtype number 200"),
        (struct.pack("<QIBBH8Q", 0, 0, 0, 2, 0, 1 << 62, 1 << 62, *[0] * 6), "bytes, at most"),
        (struct.pack("<QIBBH8Q", 0, 0, 0, 99, 0, *[1] * 8), "99 dimensions"),
        (struct.pack("<QIBBH8Q", 0, 0, 0, 1, 0, 7, *[0] * 7), "where 28 bytes of PIECE belong"),
    ],
    ids=["dtype", "shape", "dimensions", "bytes"],
)
def test_a_tensor_header_that_lies_ends_the_peer_before_a_byte_lands(lied_to: Pair, mac: Trust, header: bytes, why: str) -> None:
    forger = Forger(lied_to, mac, Lane.UP)
    place = bytearray(24)
    arrival = lied_to.server.expect(WORKER, 0, Spec("float32", (6,)), memoryview(place))
    writer = FrameWriter(forger.lines[-1].seals[0])
    forger.lines[-1].sock.sendall(frame(writer, Kind.PLACE, header) + frame(writer, Kind.PIECE, bytes([1]) * 24))
    with pytest.raises(PeerLostError, match=why):
        arrival.wait(5.0)
    assert place == bytes(24)
    forger.close()


def test_there_is_no_compression_to_make_a_bomb_of(lied_to: Pair, mac: Trust) -> None:
    forger = Forger(lied_to, mac)
    forger.write(max(Kind) + 1, BOMB)
    loses_the_liar(lied_to, f"a frame of kind {max(Kind) + 1} was not expected here")
    forger.close()


def test_a_compressed_message_is_no_message(lied_to: Pair, mac: Trust) -> None:
    forger = Forger(lied_to, mac)
    tracemalloc.start()
    try:
        forger.write(Kind.MESSAGE, BOMB)
        loses_the_liar(lied_to, "no message of ours")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    forger.close()


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.MESSAGE, Kind.MEMORY, Kind.PART, Kind.AGAIN)])
def test_a_frame_of_another_lane_is_refused(lied_to: Pair, mac: Trust, kind: Kind) -> None:
    forger = Forger(lied_to, mac)
    forger.write(kind, bytes(8))
    loses_the_liar(lied_to, f"kind {kind} was not expected here")
    forger.close()


_opened: list[str] = []
_watching = threading.Event()


def _watch(event: str, args: tuple[object, ...]) -> None:
    if event in ("open", "os.remove", "os.rename", "os.mkdir") and _watching.is_set():
        _opened.append(f"{event} {args[0]!r}")


def test_a_path_in_a_message_is_text_and_opens_nothing(lied_to: Pair, mac: Trust) -> None:
    sys.addaudithook(_watch)
    forger = Forger(lied_to, mac)
    fd = memory.create_from("../../etc/passwd", b"x")
    paths = ["../../etc/passwd", "..%2f..%2fetc", "%252e%252e", "/dev/zero", "file:///etc/passwd", "a\0b", "#/../x", "C:\\x"]
    messages = [Failed(1, path, path) for path in paths]
    writer = FrameWriter(forger.lines[0].seals[0])
    _opened.clear()
    _watching.set()
    try:
        for message in messages:
            forger.lines[0].sock.sendall(frame(writer, Kind.MEMORY, struct.pack("<Q", 1)) + frame(writer, Kind.PART, b"x"))
            forger.lines[0].sock.sendall(frame(writer, Kind.MESSAGE, encode(message)))
            delivery = lied_to.server.receive(5.0)
            assert delivery is not None
            assert delivery.message == message
            assert os.readlink(f"/proc/self/fd/{delivery.attachments[0]}").startswith("/memfd:paceline-attachment")
            os.close(delivery.attachments[0])
    finally:
        _watching.clear()
    assert _opened == []
    os.close(fd)
    forger.close()


# --- exhaustion -----------------------------------------------------------------------------------------------------


def test_one_who_says_a_byte_now_and_then_is_closed_at_the_deadline(unmet: Pair, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "HANDSHAKE_S", 0.3)
    began_s = time.monotonic()
    with stranger(unmet.endpoint) as slow:
        slow.settimeout(0.02)
        hello = iter(b"PLNh" + bytes(36) if wire is Wire.MAC else b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
        with pytest.raises(OSError, match=r"[Bb]roken pipe|reset|closed"):  # noqa: PT012
            while time.monotonic() - began_s < 10.0:
                slow.sendall(bytes([next(hello)]))
                try:
                    if slow.recv(1) == b"":
                        raise ConnectionResetError("closed")
                except TimeoutError:
                    continue
    assert time.monotonic() - began_s < 3.0
    serves_its_own(unmet)


def test_a_thousand_who_say_nothing_keep_nobody_out(unmet: Pair) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    idle: list[socket.socket] = []
    threads = threading.active_count()
    tracemalloc.start()
    try:
        idle += [stranger(unmet.endpoint) for _ in range(1000)]
        began_s = time.monotonic()
        serves_its_own(unmet)
        assert time.monotonic() - began_s < 3.0
        assert threading.active_count() <= threads + 2
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
        assert set(unmet.server.refusals) == {f"127.0.0.1: {reception.MAX_PENDING} others were in their handshake"}
        assert sum(is_closed(sock) for sock in idle[: 1000 - reception.MAX_PENDING]) == 1000 - reception.MAX_PENDING
    finally:
        tracemalloc.stop()
        for sock in idle:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_those_who_reset_at_once_do_no_harm(unmet: Pair) -> None:
    linger = struct.pack("ii", 1, 0)
    for said in (b"", b"x", b"PLNh" + bytes(36)) * 60:
        with stranger(unmet.endpoint) as rude:
            rude.sendall(said)
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    serves_its_own(unmet)


def test_one_with_a_key_who_never_beats_is_lost(lied_to: Pair, mac: Trust) -> None:
    control = insider(lied_to.endpoint, mac, Lane.CONTROL)
    loses_the_liar(lied_to, "nothing was heard of it for 0.8 s")
    control.sock.close()


def test_a_lane_of_nobody_is_refused(lied_to: Pair, mac: Trust) -> None:
    for lane in (Lane.PULSE, Lane.UP, Lane.DOWN):
        with pytest.raises(ProtocolError, match="belongs to no peer that is connected"):
            insider(lied_to.endpoint, mac, lane)
    control = insider(lied_to.endpoint, mac, Lane.CONTROL)
    with pytest.raises(ProtocolError, match="belongs to no peer that is connected"):
        insider(lied_to.endpoint, mac, Lane.UP, incarnation=5)
    up = insider(lied_to.endpoint, mac, Lane.UP)
    with pytest.raises(ProtocolError, match="is connected already"):
        insider(lied_to.endpoint, mac, Lane.UP)
    control.sock.close()
    up.sock.close()


def test_one_who_is_not_expected_is_refused_though_he_holds_the_key(unmet: Pair, trust: Trust) -> None:
    unexpected = TcpPort(COORDINATOR, trust)
    with pytest.raises(ProtocolError, match=r"coordinator cannot reach server 1 at .*: this peer is not expected there"):
        unexpected.connect(SERVER, unmet.endpoint)
    unexpected.close()


# --- addresses and key files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.0.2.1"])
def test_a_public_address_without_a_key_is_refused_before_anything_is_bound(host: str) -> None:
    port = TcpPort(SERVER, Trust())
    with pytest.raises(ConfigError, match="is not a loopback address, so a key is needed: make one with `paceline keys new"):
        port.listen(host, 0, {WORKER})
    with pytest.raises(ConfigError, match="is not a loopback address"):
        port.connect(WORKER, Endpoint(host, 9))
    port.close()


def test_the_wire_is_tls_by_default_off_this_machine(key_file: Path) -> None:
    key = read_key_file(key_file)
    assert Trust(key).wire is Wire.TLS
    assert trust_for("192.0.2.1", key).wire is Wire.TLS
    assert trust_for("192.0.2.1", key, Wire.MAC).wire is Wire.MAC
    assert trust_for("127.0.0.1", key).wire is Wire.MAC
    assert trust_for("localhost", None).wire is Wire.PLAIN
    with pytest.raises(ConfigError, match=r"192.0.2.1 is not a loopback address, so --wire must be tls or mac, got plain"):
        trust_for("192.0.2.1", key, Wire.PLAIN)
    with pytest.raises(ConfigError, match="--wire tls needs a key file"):
        Trust(None, Wire.TLS)


def test_a_loopback_port_is_bound_to_loopback_alone(unmet: Pair) -> None:
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    bound = [local for _, local, _, state, *_ in listening if state == "0A" and local.endswith(f":{unmet.endpoint.port:04X}")]
    assert bound == [f"0100007F:{unmet.endpoint.port:04X}"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_can_read_is_refused(key_file: Path, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "open.key"
    path.write_bytes(key_file.read_bytes())
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}, so others can read or change it: chmod 600"):
        read_key_file(path)


def test_a_key_of_another_user_is_refused(key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "theirs.key"
    path.touch(mode=0o600)
    path.write_bytes(key_file.read_bytes())
    if os.getuid() == 0:
        os.chown(path, 4242, 4242)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(ConfigError, match=r"belongs to user .* who runs the job"):
        read_key_file(path)


@pytest.mark.parametrize("text", ["", "hello", "-----BEGIN PACELINE JOB KEY-----\nAAAA\n-----END PACELINE JOB KEY-----\n", "\0" * 70_000])
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "no.key"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"no.key is not a key file: make one with `paceline keys new FILE`"):
        read_key_file(path)


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the key file .*none.key cannot be read: No such file"):
        read_key_file(tmp_path / "none.key")
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_key_file(tmp_path)
    assert key_of(None) is None
    assert key_of("") is None


def test_a_new_key_is_private_and_written_over_nothing(tmp_path: Path) -> None:
    path = tmp_path / "job.key"
    old_mask = os.umask(0)
    try:
        write_key_file(path)
    finally:
        os.umask(old_mask)
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="exists already; a key is never written over"):
        write_key_file(path)
    link = tmp_path / "link.key"
    link.symlink_to(tmp_path / "elsewhere.key")
    with pytest.raises(ConfigError, match="exists already"):
        write_key_file(link)
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_key_file(tmp_path / "none" / "job.key")
    with pytest.raises(ConfigError, match="1 to 36500 days, got 0"):
        write_key_file(tmp_path / "never.key", days=0)
    assert path.read_bytes() == before
    assert not (tmp_path / "elsewhere.key").exists()


def test_a_key_that_has_expired_is_said_with_its_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.transport import keys

    class Past(keys.datetime):
        @classmethod
        def now(cls, tz: object = None) -> keys.datetime:
            return keys.datetime(2020, 1, 1, tzinfo=keys.UTC)

    with monkeypatch.context() as patch:
        patch.setattr(keys, "datetime", Past)
        write_key_file(tmp_path / "old.key", days=30)
    with pytest.raises(ConfigError, match=r"was good until 2020-01-31, and the clock of .* says .*: make a new one"):
        read_key_file(tmp_path / "old.key")


def test_the_authority_signs_nobody_else(key_file: Path) -> None:
    """Its private key is in no file, so a stolen member's key makes no further members' certificates."""
    text = key_file.read_text()
    assert text.count("PRIVATE KEY-----") == 2
    member, authority = x509.load_pem_x509_certificates(text.encode())
    assert member.issuer == authority.subject
    assert not member.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


# --- secrets ------------------------------------------------------------------------------------------------------------

USER_OF_A_KEY = """
import os, sys, traceback
from paceline.errors import PacelineError
from paceline.messages import Address, Begin
from paceline.transport.dial import Endpoint
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust, key_of
from paceline.transport.wire import Wire
key = key_of(os.environ["PACELINE_KEY_FILE"])
port = TcpPort(Address("worker", 3), Trust(key, Wire[sys.argv[2]]))
print(key, vars(port), sys.argv, dict(os.environ))
print(open("/proc/self/cmdline").read(), open("/proc/self/environ").read())
for peer in (Address("server", 9), Address("server", 1)):
    try:
        port.connect(peer, Endpoint("127.0.0.1", int(sys.argv[1])))
        port.send(peer, Begin(1))
    except PacelineError:
        traceback.print_exc()
print(port.receive(10.0))
port.close()
"""


def test_the_key_is_in_no_argument_environment_output_or_traceback(unmet: Pair, key_file: Path, wire: Wire) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", USER_OF_A_KEY, str(unmet.endpoint.port), wire.name],
        env={**os.environ, "PACELINE_KEY_FILE": str(key_file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        assert unmet.server.receive(30.0) == Delivery(WORKER, Begin(1))
        unmet.server.send(WORKER, Params(4))
        output = child.communicate(timeout=30.0)[0]
    finally:
        child.kill()
    assert b"Params(version=4)" in output
    assert b"server 1 answered there" in output
    text = key_file.read_text()
    secret = read_key_file(key_file).secret
    private = "".join(text.split("PRIVATE KEY-----")[1].split()[:-1]).removesuffix("-----END")
    for shown in (secret, base64.b64encode(secret), secret.hex().encode(), repr(secret).encode(), private[:40].encode()):
        assert shown not in output


def test_a_refusal_on_either_side_does_not_quote_the_key(unmet: Pair, old_key_file: Path, wire: Wire) -> None:
    secret = read_key_file(old_key_file).secret
    told = turned_away(unmet, Trust(read_key_file(old_key_file), wire))
    until(unmet.server, lambda: len(unmet.server.refusals) == 1)
    for sentence in (told, *unmet.server.refusals):
        assert base64.b64encode(secret).decode() not in sentence
        assert secret.hex() not in sentence


def test_every_error_of_the_wire_is_one_of_ours() -> None:
    assert issubclass(ProtocolError, PacelineError)
    assert issubclass(PeerLostError, PacelineError)


def test_the_command_makes_a_key_and_does_not_show_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.key"
    assert main(["keys", "new", str(path), "--days", "7"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{path} is the job's key for 7 days: copy it to every host")
    assert base64.b64encode(read_key_file(path).secret).decode() not in shown.out + shown.err
    assert main(["keys", "new", str(path)]) == 2
    assert capsys.readouterr().err == f"paceline: {path} exists already; a key is never written over, because a job may be using it\n"
