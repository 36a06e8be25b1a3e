"""What the decoders of a network's bytes are fuzzed from: a valid input of every kind, stored in `transport/corpus`.

`python tests/corpus.py` writes it anew; a test compares what is stored with what is made here. Inputs of frames and handshakes
begin with a byte whose bits tell `scripts/fuzz_wire.py` what to repair after a mutation; here all is right as it is.
"""

from __future__ import annotations

import re
import shutil
import struct
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from paceline import messages
from paceline.messages import Address
from paceline.pace import Pace, parse_pace
from paceline.transport.handshake import Identity, Lane, Refusal, accepts, connects
from paceline.transport.piece import DTYPES, MAX_DIMENSIONS, Piece, Spec, pack_piece
from paceline.transport.wire import Checksum, FrameWriter, Kind, Wire

STORED = Path(__file__).parent / "transport" / "corpus"
KEY, NONCE = b"k" * 32, bytes(32)
WORKER, SERVER = Address("worker", 3), Address("server", 1)
CONNECTS, ACCEPTS = Identity(WORKER, Lane.CONTROL, generation=1), Identity(SERVER, Lane.CONTROL, generation=1)
PLAIN, REPAIRED = b"\0", b"\1"
Input = tuple[str, bytes]


def frames() -> Iterator[Input]:
    """A frame of each kind, and an attachment in parts, once more, with its message."""
    payloads = {
        Kind.MESSAGE: messages.encode(messages.Begin(1)),
        Kind.MEMORY: struct.pack("<Q", 3),
        Kind.PART: b"abc",
        Kind.AGAIN: b"\0",
        Kind.PULSE: struct.pack("<Q", 7),
        Kind.PLACE: pack_piece(Piece(1, 0, Spec("float32", (1,)))),
        Kind.PIECE: b"data",
        Kind.TAKEN: struct.pack("<Q", 1),
    }
    for kind in Kind:
        yield kind.name, PLAIN + stream((kind, payloads[kind]))
    whole = [(kind, payloads[kind]) for kind in (Kind.MEMORY, Kind.PART, Kind.AGAIN, Kind.MESSAGE)]
    yield "attachments", PLAIN + stream(*whole)
    yield "empty-attachment", PLAIN + stream((Kind.MEMORY, bytes(8)), (Kind.MESSAGE, payloads[Kind.MESSAGE]))
    yield "tensor", PLAIN + stream((Kind.PLACE, payloads[Kind.PLACE]), (Kind.PIECE, payloads[Kind.PIECE]))


def stream(*sent: tuple[Kind, bytes]) -> bytes:
    """Frames of one connection, of generation 1."""
    writer = FrameWriter(Checksum())
    return b"".join(writer.header(kind, 1, payload) + payload for kind, payload in sent)


def every_message() -> Iterator[Input]:
    """A message of each class."""
    for kind in typing.get_args(messages.AnyMessage):
        yield kind.__name__, messages.encode(typing.cast("messages.Message", example(kind)))


def example(kind: object) -> object:
    """A value of an annotated type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Pace:
        return parse_pace("sync")
    if origin in (types.UnionType, typing.Union):
        return example(arguments[0])
    if origin is tuple:
        return tuple(example(argument) for argument in arguments if argument is not Ellipsis)
    if origin is dict:
        return {example(arguments[0]): example(arguments[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{name: example(hint) for name, hint in typing.get_type_hints(kind).items() if name in kind.__struct_fields__})
    return {int: 3, float: 0.5, str: "a", bool: True, bytes: b"\x01", types.NoneType: None}[typing.cast("type", kind)]


def handshakes() -> Iterator[Input]:
    """What each end hears in its two turns, the other's opening and then its proof; and each refusal that the connecting one may hear."""
    for end, heard in held_talk(Refusal.NONE).items():
        yield end, PLAIN + heard
        yield f"{end}-repaired", REPAIRED + heard
    for refusal in list(Refusal)[1:]:
        yield f"refused-{refusal.name}", PLAIN + held_talk(refusal)["connects"]


def held_talk(refusal: Refusal) -> dict[str, bytes]:
    """What is heard of a talk between two ends, of which the accepting one gives this verdict."""
    wire = Wire.PLAIN if refusal is Refusal.WIRE else Wire.MAC
    key = b"other" if refusal is Refusal.KEY else KEY
    near = connects(CONNECTS, SERVER, wire=Wire.MAC, key=KEY, nonce=NONCE)
    far = accepts(lambda *_: (refusal, ACCEPTS), wire=wire, key=key, nonce=NONCE)
    next(far)
    hello, _ = next(near)
    challenge, _ = far.send(hello)
    if refusal is Refusal.WIRE:
        return {"connects": challenge}
    introduction, _ = near.send(challenge)
    verdict, _ = far.send(introduction)
    return {"accepts": hello + introduction, "connects": challenge + verdict}


def tensors() -> Iterator[Input]:
    """A piece of a tensor of each dtype and each number of dimensions, and a late piece of a large one."""
    for number, dtype in enumerate(DTYPES):
        yield dtype, pack_piece(Piece(number, 0, Spec(dtype, (3,) * min(number, MAX_DIMENSIONS))))
    yield "third-piece", pack_piece(Piece(1, 2, Spec("float32", (3 << 20,))))


MAKERS: dict[str, Callable[[], Iterator[Input]]] = {
    "frames": frames,
    "messages": every_message,
    "handshake": handshakes,
    "tensors": tensors,
}


def made() -> dict[str, bytes]:
    """Every input by its path within the corpus."""
    inputs = ((target, name, data) for target, maker in MAKERS.items() for name, data in maker())
    return {f"{target}/{re.sub(r'(?<=[a-z])(?=[A-Z])', '-', name).lower()}": data for target, name, data in inputs}


if __name__ == "__main__":
    shutil.rmtree(STORED, ignore_errors=True)
    for path, data in made().items():
        (STORED / path).parent.mkdir(parents=True, exist_ok=True)
        (STORED / path).write_bytes(data)
