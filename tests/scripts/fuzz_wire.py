"""Fuzzes what decodes bytes from a network: `fuzz_wire.py fuzz TARGET FOUND [libFuzzer options]`.

It begins with the stored corpus, a valid input of every kind, and keeps in the folder FOUND what reaches more. Lengths, seals, digests and
proofs are repaired after each mutation, so that the fuzzer gets past them to what lies behind. Anything but our typed errors
ends the run with a traceback. `cover TARGET FOUND` replays all of it and prints which lines of the decoders it reaches.
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

sys.path.insert(0, str(Path(__file__).parent.parent))
from corpus import ACCEPTS, CONNECTS, KEY, NONCE, STORED

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
        length = length if wrong[0] & 32 else len(payload)
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


# --- messages -----------------------------------------------------------------------------------------------------


def decoded(data: bytes) -> None:
    """Bytes that claim to be a message."""
    try:
        message = messages.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    again = messages.encode(message)
    assert messages.encode(messages.decode(again)) == again


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
    ends: list[tuple[handshake.Talk, int]] = [
        (handshake.connects(CONNECTS, ACCEPTS.address, wire=wire.Wire.MAC, key=KEY, nonce=NONCE), handshake.VERDICT_BYTES),
        (handshake.accepts(_admit, wire=wire.Wire.MAC, key=KEY, nonce=NONCE), handshake.INTRODUCTION_BYTES),
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
    return handshake.Refusal.NONE if wanted == ACCEPTS.address else handshake.Refusal.ELSEWHERE, ACCEPTS._replace(lane=who.lane)


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


TARGETS: dict[str, tuple[Callable[[bytes], None], tuple[types.ModuleType, ...]]] = {
    "frames": (frames, (wire, luggage)),
    "messages": (decoded, ()),
    "handshake": (shaken, (handshake,)),
    "tensors": (announced, (piece,)),
}
DECODERS = {
    *(wire.FrameReader.header, wire.FrameReader.check, wire.FrameReader.feed, wire.FrameReader.next),
    *(luggage.Luggage.add, luggage.Luggage._begin, luggage.Luggage._fill, luggage.Luggage.hand_over, piece.unpack_piece),
    *(handshake.connects, handshake.accepts, handshake._check_opening, handshake._refusal_of, handshake._unpack),
    handshake._unpack_wanted,
}


def cover(name: str, found: Path) -> None:
    """Replay the corpus, and print the share of the decoders' lines that it reaches; of the messages' classes, which C decodes."""
    inputs = [path.read_bytes() for folder in (STORED / name, found) for path in sorted(folder.iterdir())]
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
    target, modules = TARGETS[name]
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
    command, name, found, *options = sys.argv[1:]
    Path(found).mkdir(exist_ok=True)
    if command == "cover":
        cover(name, Path(found))
        return
    atheris.Setup([sys.argv[0], found, str(STORED / name), *options], TARGETS[name][0])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
