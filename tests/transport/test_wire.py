"""Frames and tensor headers as bytes: what is written is read back, and every lie is refused before it costs anything."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ProtocolError
from paceline.transport.piece import DTYPES, MAX_DIMENSIONS, Piece, Spec, check_spec, pack_piece, unpack_piece
from paceline.transport.wire import (
    HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    MOST_BYTES,
    PIECE_BYTES,
    Checksum,
    FrameReader,
    FrameWriter,
    HeaderChecksum,
    Kind,
    Mac,
    Seal,
)

KEY = bytes(range(32))
SEALS: dict[str, Callable[[], Seal]] = {"checksum": Checksum, "mac": lambda: Mac(KEY), "tls": HeaderChecksum}
FIELDS = struct.Struct("<4sBBHQQQ16s")
HUGE = [MAX_MESSAGE_BYTES + 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1]


@pytest.fixture(params=SEALS.values(), ids=SEALS)
def seal(request: pytest.FixtureRequest) -> Seal:
    return request.param()


def forged(seal: Seal, *, payload: bytes = b"", **changed: object) -> bytes:
    """A frame that a writer of ours would not write, with a seal that is right."""
    right: dict[str, object] = {
        "magic": b"PLNf",
        "version": 1,
        "kind": Kind.MESSAGE,
        "reserved": 0,
        "generation": 0,
        "sequence": 0,
        "length": len(payload),
        "digest": seal.payload(0, payload),
    }
    fields = FIELDS.pack(*(right | changed).values())
    return fields + seal.header(int(str((right | changed)["sequence"])), fields) + payload


def read_all(reader: FrameReader, data: bytes) -> list[tuple[Kind, bytes]]:
    reader.feed(data)
    found: list[tuple[Kind, bytes]] = []
    while (item := reader.next()) is not None:
        found.append((item[0].kind, item[1]))
    return found


frames = st.lists(st.tuples(st.sampled_from([Kind.MESSAGE, Kind.PART]), st.binary(max_size=300)), max_size=8)


@given(frames, st.lists(st.integers(1, 200), min_size=1), st.sampled_from(list(SEALS)))
def test_frames_are_read_back_whatever_the_network_cuts_them_into(sent: list[tuple[Kind, bytes]], cuts: list[int], name: str) -> None:
    writer, reader = FrameWriter(SEALS[name]()), FrameReader(SEALS[name](), Kind)
    stream = b"".join(writer.header(kind, 3, payload) + payload for kind, payload in sent)
    found: list[tuple[Kind, bytes]] = []
    place = step = 0
    while place < len(stream):
        size = cuts[step % len(cuts)]
        found += read_all(reader, stream[place : place + size])
        place, step = place + size, step + 1
    assert found == sent
    assert reader.missing_bytes == 0
    assert reader.generation == (3 if sent else 0)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"magic": b"HTTP"}, "begins with"),
        ({"version": 2}, "protocol version 2, this is version 1"),
        ({"reserved": 1}, "not expected here"),
        ({"kind": 0}, "kind 0 was not expected"),
        ({"kind": 99}, "kind 99 was not expected"),
        ({"kind": Kind.PIECE}, "was not expected"),
        ({"sequence": 1}, "frame 0 was expected, frame 1 came"),
        ({"sequence": (1 << 64) - 1}, "damaged or forged"),
        *(({"length": length}, f"claims {length} bytes, at most {MAX_MESSAGE_BYTES}") for length in HUGE),
    ],
)
def test_a_header_that_lies_is_refused_though_its_seal_is_right(seal: Seal, changed: dict[str, object], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        FrameReader(seal, [Kind.MESSAGE]).header(forged(seal, **changed)[:HEADER_BYTES])


def test_a_length_cannot_be_negative() -> None:
    lie = bytearray(forged(Checksum()))
    lie[24:32] = struct.pack("<q", -1)
    lie[48:64] = Checksum().header(0, bytes(lie[:48]))
    with pytest.raises(ProtocolError, match="claims 18446744073709551615 bytes"):
        FrameReader(Checksum(), [Kind.MESSAGE]).header(bytes(lie[:HEADER_BYTES]))


def test_a_huge_claim_costs_no_memory() -> None:
    reader = FrameReader(Checksum(), [Kind.MESSAGE])
    header = forged(Checksum(), length=MAX_MESSAGE_BYTES)[:HEADER_BYTES]
    tracemalloc.start()
    try:
        assert read_all(reader, header) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert reader.missing_bytes == MAX_MESSAGE_BYTES


@given(st.data(), st.sampled_from(["checksum", "mac"]))
def test_every_flipped_bit_is_found(data: st.DataObject, name: str) -> None:
    payload = data.draw(st.binary(min_size=1, max_size=60))
    frame = bytearray(FrameWriter(SEALS[name]()).header(Kind.MESSAGE, 1, payload) + payload)
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolError):
        read_all(FrameReader(SEALS[name](), [Kind.MESSAGE]), bytes(frame))


def test_a_truncated_frame_is_never_handed_on(seal: Seal) -> None:
    frame = FrameWriter(seal).header(Kind.MESSAGE, 0, b"whole") + b"whole"
    for size in range(len(frame)):
        reader = FrameReader(seal, [Kind.MESSAGE])
        assert read_all(reader, frame[:size]) == []
        assert (reader.missing_bytes > 0) == (size > 0)


def test_a_replayed_frame_is_refused(seal: Seal) -> None:
    frame = FrameWriter(seal).header(Kind.MESSAGE, 0, b"once") + b"once"
    reader = FrameReader(seal, [Kind.MESSAGE])
    assert read_all(reader, frame) == [(Kind.MESSAGE, b"once")]
    with pytest.raises(ProtocolError, match="frame 1 was expected, frame 0 came: it is replayed"):
        read_all(reader, frame)


def test_a_frame_of_another_connection_is_refused() -> None:
    frame = FrameWriter(Mac(KEY)).header(Kind.MESSAGE, 0, b"x") + b"x"
    with pytest.raises(ProtocolError, match="damaged or forged"):
        read_all(FrameReader(Mac(bytes(32)), [Kind.MESSAGE]), frame)


def test_frames_cannot_be_swapped_or_left_out() -> None:
    writer = FrameWriter(Mac(KEY))
    first, second = (writer.header(Kind.MESSAGE, 0, text) + text for text in (b"a", b"b"))
    with pytest.raises(ProtocolError, match="frame 0 was expected, frame 1 came"):
        read_all(FrameReader(Mac(KEY), [Kind.MESSAGE]), second + first)


def test_a_payload_cannot_be_given_to_another_header() -> None:
    writer = FrameWriter(Mac(KEY))
    header = writer.header(Kind.MESSAGE, 0, b"pay 10")
    with pytest.raises(ProtocolError, match="payload of a MESSAGE frame was damaged or forged"):
        read_all(FrameReader(Mac(KEY), [Kind.MESSAGE]), header + b"pay 99")


def test_the_generation_is_under_the_seal_and_never_goes_back(seal: Seal) -> None:
    writer, reader = FrameWriter(seal), FrameReader(seal, [Kind.MESSAGE], generation=4)
    assert read_all(reader, writer.header(Kind.MESSAGE, 5, b"")) == [(Kind.MESSAGE, b"")]
    with pytest.raises(ProtocolError, match="generation 4, but generation 5 has begun"):
        read_all(reader, writer.header(Kind.MESSAGE, 4, b""))
    moved = bytearray(FrameWriter(seal).header(Kind.MESSAGE, 5, b""))
    moved[8] = 6
    with pytest.raises(ProtocolError, match="damaged or forged"):
        read_all(FrameReader(seal, [Kind.MESSAGE]), bytes(moved))


def test_a_writer_refuses_what_no_reader_takes() -> None:
    with pytest.raises(ValueError, match=f"at most {PIECE_BYTES} bytes, got {PIECE_BYTES + 1}"):
        FrameWriter(Checksum()).header(Kind.PIECE, 0, bytes(PIECE_BYTES + 1))


@given(st.binary(max_size=400), st.booleans())
def test_noise_is_refused_or_waited_for_and_nothing_else(noise: bytes, repaired: bool) -> None:
    """With the seal repaired, fuzzing gets past it to what the fields say."""
    if repaired and len(noise) >= HEADER_BYTES:
        fields = b"PLNf\x01" + noise[5:16] + bytes(8) + noise[24:48]
        noise = fields + Checksum().header(0, fields) + noise[HEADER_BYTES:]
    try:
        found = read_all(FrameReader(Checksum(), Kind), noise)
    except ProtocolError:
        return
    assert all(len(payload) <= MOST_BYTES[kind] for kind, payload in found)
    assert not found or repaired


# --- tensor headers -----------------------------------------------------------------------------------------

specs = st.builds(Spec, st.sampled_from(DTYPES), st.lists(st.integers(0, 1 << 20), max_size=MAX_DIMENSIONS).map(tuple)).filter(
    lambda spec: spec.size_bytes < 1 << 40
)
HEADER = struct.Struct("<QIBBH8Q")


@given(specs, st.integers(0, (1 << 64) - 1), st.data())
def test_a_piece_is_announced_and_understood(spec: Spec, key: int, data: st.DataObject) -> None:
    piece = Piece(key, data.draw(st.integers(0, min(spec.num_pieces, 1 << 32) - 1)), spec)
    assert unpack_piece(pack_piece(piece)) == piece


@given(specs)
def test_the_pieces_of_a_tensor_are_its_bytes_once_each(spec: Spec) -> None:
    numbers = {0, spec.num_pieces // 2, spec.num_pieces - 1}
    assert all(0 <= spec.piece(number).stop - spec.piece(number).start <= PIECE_BYTES for number in numbers)
    assert spec.piece(spec.num_pieces - 1).stop == spec.size_bytes
    assert all(spec.piece(number).start == number * PIECE_BYTES for number in numbers)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ((1, 0, 10, 1, 0, 4), "dtype number 10, the last one is 9"),
        ((1, 0, 255, 1, 0, 4), "dtype number 255"),
        ((1, 0, 0, 9, 0, 4), "9 dimensions"),
        ((1, 0, 0, 255, 0, 4), "255 dimensions"),
        ((1, 0, 0, 1, 7, 4), "1 dimensions"),
        ((1, 0, 0, 1, 0, 4, 4), "1 dimensions with the lengths"),
        ((1, 0, 0, 2, 0, 1 << 63, 2), "73786976294838206464 bytes"),
        ((1, 0, 0, 2, 0, (1 << 64) - 1, (1 << 64) - 1), "bytes, at most"),
        ((1, 0, 0, 8, 0, *[1 << 32] * 8), "bytes, at most"),
        ((1, 1, 0, 1, 0, 4), r"piece 1 of float32\[4\], which has 1"),
        ((1, (1 << 32) - 1, 0, 1, 0, 4), "piece 4294967295"),
    ],
)
def test_a_tensor_header_that_lies_is_refused(fields: tuple[int, ...], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        unpack_piece(HEADER.pack(*fields, *[0] * (13 - len(fields))))


@given(st.binary(max_size=100) | st.binary(min_size=80, max_size=80))
def test_a_tensor_header_of_noise_is_refused_or_means_what_it_says(noise: bytes) -> None:
    try:
        piece = unpack_piece(noise)
    except ProtocolError:
        return
    check_spec(piece.spec)
    assert pack_piece(piece) == noise


@pytest.mark.parametrize("spec", [Spec("object", (1,)), Spec("float32", (-1,)), Spec("int8", (1,) * 9), Spec("int8", (1 << 45,))])
def test_a_tensor_that_the_wire_does_not_carry_is_refused_at_home(spec: Spec) -> None:
    with pytest.raises(ValueError, match="tensor"):
        check_spec(spec)
