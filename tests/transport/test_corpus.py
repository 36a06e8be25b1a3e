"""The stored inputs that fuzzing begins with are valid, of every kind there is, and those that are made here."""

from __future__ import annotations

import typing

import pytest

from corpus import ACCEPTS, CONNECTS, KEY, MAKERS, NONCE, SERVER, STORED, WORKER, made
from paceline import messages
from paceline.errors import ProtocolError
from paceline.transport.handshake import Refusal, Session, accepts, connects
from paceline.transport.piece import DTYPES, check_spec, unpack_piece
from paceline.transport.wire import Checksum, FrameReader, Kind, Wire

MOST_BYTES = 200_000
OPENING_BYTES = 40


def stored(target: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((STORED / target).iterdir())}


def test_the_stored_inputs_are_those_that_are_made() -> None:
    found = {f"{path.parent.name}/{path.name}": path.read_bytes() for target in MAKERS for path in (STORED / target).iterdir()}
    assert found == made(), "python tests/corpus.py writes them anew"
    assert sum(map(len, found.values())) < MOST_BYTES


def test_every_frame_is_read_and_every_kind_is_there() -> None:
    seen: set[Kind] = set()
    for name, data in stored("frames").items():
        reader = FrameReader(Checksum(), Kind)
        reader.feed(data[1:])
        while (item := reader.next()) is not None:
            seen.add(item[0].kind)
        assert reader.missing_bytes == 0, name
    assert seen == set(Kind)


def test_every_message_is_decoded_and_every_class_is_there() -> None:
    decoded = [messages.decode(data) for data in stored("messages").values()]
    assert {type(message) for message in decoded} == set(typing.get_args(messages.AnyMessage))
    assert [messages.encode(message) for message in decoded] == list(stored("messages").values())


def test_every_tensor_header_is_unpacked_and_every_dtype_is_there() -> None:
    specs = [unpack_piece(data).spec for data in stored("tensors").values()]
    for spec in specs:
        check_spec(spec)
    assert {spec.dtype for spec in specs} == set(DTYPES)


def end_of(heard: bytes, *, connecting: bool) -> Session:
    """The session of the end that hears this."""
    if connecting:
        talk = connects(CONNECTS, SERVER, wire=Wire.MAC, key=KEY, nonce=NONCE)
    else:
        talk = accepts(lambda *_: (Refusal.NONE, ACCEPTS), wire=Wire.MAC, key=KEY, nonce=NONCE)
    next(talk)
    try:
        _, need = talk.send(heard[:OPENING_BYTES])
        assert need == len(heard) - OPENING_BYTES
        talk.send(heard[OPENING_BYTES:])
        talk.send(b"")
    except StopIteration as end:
        return end.value
    raise AssertionError("the talk goes on")


def test_every_stage_of_a_handshake_is_heard_and_every_refusal_is_there() -> None:
    told: set[str] = set()
    for name, data in stored("handshake").items():
        if name.startswith("refused"):
            with pytest.raises(ProtocolError) as refused:
                end_of(data[1:], connecting=True)
            told.add(str(refused.value))
        else:
            connecting = name.startswith("connects")
            assert end_of(data[1:], connecting=connecting).peer.address == (SERVER if connecting else WORKER)
    assert len(told) == len(Refusal) - 1
