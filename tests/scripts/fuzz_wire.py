"""Fuzzes what decodes bytes from a network: `fuzz_wire.py fuzz TARGET CORPUS [libFuzzer options]`.

The corpus begins with a valid input of every kind. Seals, digests and proofs are repaired after each mutation, so that the
fuzzer gets past them to what lies behind. Anything but our typed errors ends the run with a traceback.
`cover TARGET CORPUS` replays a corpus and prints which lines of the decoders it reached.
"""

from __future__ import annotations

import hmac
import struct
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import atheris
import msgspec

with atheris.instrument_imports(include=["paceline"]):
    from paceline import messages
    from paceline.transport import connection, handshake, luggage, piece, wire

from paceline.errors import ProtocolError
from paceline.pace import Pace, parse_pace

KEY = b"k" * 32
ME, THEM = messages.Address("worker", 3), messages.Address("server", 1)
FIELDS = struct.Struct("<4sBBHQQQ16s")


# --- frames, and the messages and attachments in them -----------------------------------------------------------


def sealed(data: bytes) -> Iterator[bytes]:
    """The same frames, right in all that a peer who holds the key can do right; a bit of the first byte leaves something as it came."""
    seal, place, number, wrong = wire.Checksum(), 1, 0, data[:1] or b"\0"
    while place + wire.HEADER_BYTES <= len(data):
        magic, version, kind, reserved, generation, sequence, length, digest = FIELDS.unpack(data[place : place + FIELDS.size])
        came = data[place + FIELDS.size : place + wire.HEADER_BYTES]
        place += wire.HEADER_BYTES
        payload = data[place : place + length]
        place += len(payload)
        magic = magic if wrong[0] & 1 else wire.MAGIC
        version = version if wrong[0] & 2 else wire.VERSION
        sequence = sequence if wrong[0] & 4 else number
        digest = digest if wrong[0] & 8 else seal.payload(number, payload)
        fields = FIELDS.pack(magic, version, kind, reserved, generation, sequence, length, digest)
        yield fields + (came if wrong[0] & 16 else seal.header(sequence, fields)) + payload
        number += 1


def frames(data: bytes) -> None:
    """A control connection that receives these frames."""
    reader, bags = wire.FrameReader(wire.Checksum(), wire.Kind), luggage.Luggage()
    try:
        for part in sealed(data):
            reader.feed(part)
            while (item := reader.next()) is not None:
                frame, payload = item
                assert len(payload) <= wire.MOST_BYTES[frame.kind]
                if frame.kind in (wire.Kind.MEMORY, wire.Kind.PART, wire.Kind.AGAIN):
                    bags.add(frame, payload)
                elif frame.kind is wire.Kind.MESSAGE:
                    connection.close_all(bags.hand_over())
    except ProtocolError:
        pass
    finally:
        bags.drop()


def frame_seeds() -> Iterator[bytes]:
    """A frame of each kind, and an attachment with its message."""
    payloads = {wire.Kind.MEMORY: struct.pack("<Q", 3), wire.Kind.AGAIN: b"\0", wire.Kind.PART: b"abc"}
    for kind in wire.Kind:
        payload = payloads.get(kind, b"")
        yield b"\0" + wire.FrameWriter(wire.Checksum()).header(kind, 1, payload) + payload
    writer = wire.FrameWriter(wire.Checksum())
    order = (wire.Kind.MEMORY, wire.Kind.PART, wire.Kind.AGAIN, wire.Kind.MESSAGE)
    empty = struct.pack("<Q", 0)
    yield b"\0" + wire.FrameWriter(wire.Checksum()).header(wire.Kind.MEMORY, 2, empty) + empty
    yield b"\0" + b"".join(writer.header(kind, 2, payloads.get(kind, b"")) + payloads.get(kind, b"") for kind in order)


# --- messages -----------------------------------------------------------------------------------------------------


def decoded(data: bytes) -> None:
    """Bytes that claim to be a message."""
    try:
        message = messages.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    again = messages.encode(message)
    assert messages.encode(messages.decode(again)) == again


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


def message_seeds() -> Iterator[bytes]:
    """A message of each class."""
    for kind in typing.get_args(messages.AnyMessage):
        yield messages.encode(typing.cast("messages.Message", example(kind)))


# --- handshakes -----------------------------------------------------------------------------------------------------


def proof(purpose: bytes, transcript: bytes) -> bytes:
    return hmac.digest(KEY, b"paceline 1 " + purpose + b"\0" + transcript, "sha256")


def shaken(data: bytes) -> None:
    """Both ends, whose other end holds the key and says what the fuzzer likes."""
    if len(data) < 4:
        return
    opening, body, repaired = data[1:41].ljust(40, b"\0"), data[41:], data[0] & 1
    if data[0] & 2:
        opening = b"PLNh\x01" + (b"\x01" if data[0] & 4 else b"\0") + b"\0\0" + opening[8:]
    me = handshake.Identity(ME, handshake.Lane.CONTROL, generation=1)
    ends: list[tuple[handshake.Talk, int]] = [
        (handshake.connects(me, THEM, wire=wire.Wire.MAC, key=KEY, nonce=bytes(32)), handshake.VERDICT_BYTES),
        (handshake.accepts(_admit, wire=wire.Wire.MAC, key=KEY, nonce=bytes(32)), handshake.INTRODUCTION_BYTES),
    ]
    for end, (talk, size) in enumerate(ends):
        said = body[: size - 32].ljust(size - 32, b"\0")
        try:
            hello, _ = next(talk)
            answer, need = talk.send(opening)
            assert need in (0, size)
            transcript = hello + opening + answer + said if end == 0 else opening + answer + said
            told = proof(b"connects" if end else b"accepts", transcript) if repaired else body[-32:].ljust(32, b"\0")
            talk.send(said + told)
            next(talk)
        except (ProtocolError, StopIteration):
            continue


def _admit(who: handshake.Identity, wanted: messages.Address) -> tuple[handshake.Refusal, handshake.Identity]:
    assert who.number < handshake.MAX_LANES
    return handshake.Refusal.NONE if wanted == THEM else handshake.Refusal.ELSEWHERE, handshake.Identity(THEM, who.lane)


def handshake_seeds() -> Iterator[bytes]:
    """What each end hears when all is well, with and without the proof."""
    heard = struct.pack("<BBBBIQQ", 1, 0, 0, 0, 3, 0, 0) + struct.pack("<B3xI", 2, 1)
    for flags in range(8):
        yield bytes([flags]) + b"PLNh\x01\x01" + bytes(34) + heard
        for generation in (0, 1):
            answer = struct.pack("<BBBBIQQ", 2, 0, 0, 0, 1, 0, generation)
            yield bytes([flags]) + b"PLNh\x01\x00" + bytes(34) + answer


# --- tensor headers ---------------------------------------------------------------------------------------------------


def announced(data: bytes) -> None:
    """Bytes that announce a piece of a tensor."""
    try:
        found = piece.unpack_piece(data)
    except ProtocolError:
        return
    piece.check_spec(found.spec)
    assert piece.pack_piece(found) == data
    span = found.spec.piece(found.number)
    assert 0 <= span.start <= span.stop <= found.spec.size_bytes
    assert span.stop - span.start <= wire.PIECE_BYTES


def tensor_seeds() -> Iterator[bytes]:
    """A piece of each dtype, and of each number of dimensions."""
    for number, dtype in enumerate(piece.DTYPES):
        yield piece.pack_piece(piece.Piece(number, 0, piece.Spec(dtype, (3,) * min(number, piece.MAX_DIMENSIONS))))
    yield piece.pack_piece(piece.Piece(1, 2, piece.Spec("float32", (3 << 20,))))


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], Iterator[bytes]], tuple[types.ModuleType, ...]]] = {
    "frames": (frames, frame_seeds, (wire, luggage)),
    "messages": (decoded, message_seeds, ()),
    "handshake": (shaken, handshake_seeds, (handshake,)),
    "tensors": (announced, tensor_seeds, (piece,)),
}
DECODERS = {
    *(wire.FrameReader.header, wire.FrameReader.check, wire.FrameReader.feed, wire.FrameReader.next),
    *(luggage.Luggage.add, luggage.Luggage._begin, luggage.Luggage._fill, luggage.Luggage.hand_over, piece.unpack_piece),
    *(handshake.connects, handshake.accepts, handshake._check_opening, handshake._refusal_of, handshake._unpack),
    handshake._unpack_wanted,
}


def cover(name: str, corpus: Path) -> None:
    """Replay a corpus, and print the share of the decoders' lines that it reaches; of the messages' classes, which C decodes."""
    inputs = [path.read_bytes() for path in sorted(corpus.iterdir())]
    wanted, reached = (_classes if name == "messages" else _lines)(name, inputs)
    missed = sorted(map(str, wanted - reached))
    print(f"{name}: {len(inputs)} inputs reach {1.0 - len(missed) / len(wanted):.0%} of {len(wanted)}; missed {missed}", flush=True)


def _classes(_: str, inputs: list[bytes]) -> tuple[set[object], set[object]]:
    reached: set[object] = set()
    for data in inputs:
        try:
            reached.add(type(messages.decode(data)))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return set(typing.get_args(messages.AnyMessage)), reached


def _lines(name: str, inputs: list[bytes]) -> tuple[set[object], set[object]]:
    target, _, modules = TARGETS[name]
    codes = {decoder.__code__ for decoder in DECODERS if sys.modules[decoder.__module__] in modules}
    reached: set[object] = set()

    def trace(frame: types.FrameType, event: str, _: object) -> typing.Any:
        if frame.f_code not in codes:
            return None
        if event == "line":
            reached.add((frame.f_code.co_name, frame.f_lineno))
        return trace

    for data in inputs:
        sys.settrace(trace)
        try:
            target(data)
        finally:
            sys.settrace(None)
    return {(code.co_name, line) for code in codes for _, _, line in code.co_lines() if line and line > code.co_firstlineno}, reached


def main() -> None:
    command, name, corpus, *options = sys.argv[1:]
    target, seeds, _ = TARGETS[name]
    Path(corpus).mkdir(exist_ok=True)
    for number, seed in enumerate(seeds()):
        (Path(corpus) / f"seed-{number:02d}").write_bytes(seed)
    if command == "cover":
        cover(name, Path(corpus))
        return
    atheris.Setup([sys.argv[0], corpus, *options], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
