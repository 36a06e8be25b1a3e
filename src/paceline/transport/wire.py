"""Frames between hosts as pure bytes: a sealed header of 64 bytes, then a payload. No sockets, no clock, no chance.

Nothing is believed before it is checked: the header's seal before its fields, the length before anything is allocated,
the payload's digest before it is used. A reader that has refused a frame is at its end.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from enum import IntEnum
from hmac import compare_digest
from typing import NamedTuple, Protocol

import xxhash
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from paceline.errors import ProtocolError

MAGIC = b"PLNf"
VERSION = 1
PIECE_BYTES = 4 << 20
MAX_MESSAGE_BYTES = 1 << 26
MAX_MEMORY_BYTES = 1 << 36
MAX_SEQUENCE = (1 << 63) - 1

# magic, version, kind, reserved, generation, sequence, length, digest of the payload; the seal of these 48 bytes follows
_FIELDS = struct.Struct("<4sBBHQQQ16s")
SEAL_BYTES = 16
HEADER_BYTES = _FIELDS.size + SEAL_BYTES
_NO_DIGEST = bytes(SEAL_BYTES)
_NONCE = struct.Struct("<IQ")
_PAYLOAD, _HEADER = 0, 1


class Kind(IntEnum):
    """What a frame's payload is."""

    MESSAGE = 1
    """One message of `messages.py`."""
    MEMORY = 2
    """A memory file of so many bytes follows (u64), an attachment of the next message."""
    PART = 3
    """The next bytes of that memory file."""
    AGAIN = 4
    """The attachment is the one of this number once more (u8)."""
    PULSE = 5
    """A heartbeat: how often its sender has gone on (u64)."""
    PLACE = 6
    """Which piece of which tensor follows (`piece.py`)."""
    PIECE = 7
    """The bytes of that piece."""
    TAKEN = 8
    """The tensor of this key (u64) is all there."""


MOST_BYTES = {
    Kind.MESSAGE: MAX_MESSAGE_BYTES,
    Kind.MEMORY: 8,
    Kind.PART: 1 << 20,
    Kind.AGAIN: 1,
    Kind.PULSE: 8,
    Kind.PLACE: 80,
    Kind.PIECE: PIECE_BYTES,
    Kind.TAKEN: 8,
}


class Wire(IntEnum):
    """How the bytes of a connection are protected."""

    PLAIN = 0
    """Checksums against accidents; for loopback only."""
    MAC = 1
    """A key proves every frame; everybody on the network can read it."""
    TLS = 2
    """TLS 1.3 around everything: nobody else can read or change it."""


class Seal(Protocol):
    """How the frames of one direction of one connection are proved whole; `sequence` never repeats."""

    def header(self, sequence: int, fields: bytes | memoryview) -> bytes:
        """The 16 bytes behind a header's fields."""
        ...

    def payload(self, sequence: int, payload: bytes | memoryview) -> bytes:
        """The 16 bytes that stand for a payload."""
        ...


class Checksum:
    """xxh3: finds accidents, proves nothing."""

    def header(self, sequence: int, fields: bytes | memoryview) -> bytes:  # noqa: ARG002
        """The checksum of the fields, which hold the sequence."""
        return xxhash.xxh3_128_digest(fields)

    def payload(self, sequence: int, payload: bytes | memoryview) -> bytes:  # noqa: ARG002
        """The checksum of the payload."""
        return xxhash.xxh3_128_digest(payload)


class HeaderChecksum(Checksum):
    """Looks at headers only: under TLS the payload is proved already."""

    def payload(self, sequence: int, payload: bytes | memoryview) -> bytes:  # noqa: ARG002
        """Nothing."""
        return _NO_DIGEST


class Mac:
    """AES-256-GMAC under a key that only this direction of this connection has; the sequence makes the nonce."""

    def __init__(self, key: bytes) -> None:
        self._gcm = AESGCM(key)

    def header(self, sequence: int, fields: bytes | memoryview) -> bytes:
        """The proof that the holder of the key wrote this header."""
        return self._gcm.encrypt(_NONCE.pack(_HEADER, sequence), b"", fields)

    def payload(self, sequence: int, payload: bytes | memoryview) -> bytes:
        """The proof that the holder of the key wrote this payload."""
        return self._gcm.encrypt(_NONCE.pack(_PAYLOAD, sequence), b"", payload)


class Frame(NamedTuple):
    """A header that was checked."""

    kind: Kind
    generation: int
    sequence: int
    length: int
    digest: bytes


class FrameWriter:
    """Writes the headers of one direction of a connection; payloads follow as they are."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._sequence = 0

    def header(self, kind: Kind, generation: int, payload: bytes | memoryview) -> bytes:
        """The header of the next frame."""
        if len(payload) > MOST_BYTES[kind]:
            raise ValueError(f"a {kind.name} frame has at most {MOST_BYTES[kind]} bytes, got {len(payload)}")
        sequence = self._sequence
        self._sequence += 1
        digest = self._seal.payload(sequence, payload)
        fields = _FIELDS.pack(MAGIC, VERSION, kind, 0, generation, sequence, len(payload), digest)
        return fields + self._seal.header(sequence, fields)


class FrameReader:
    """Checks the frames of one direction of a connection, of which only `kinds` may come.

    Every way to be wrong raises ProtocolError. Two ways to use it: `header` and `check` with exact bytes, or `feed`
    and `next` for a stream of frames whose payloads are small.
    """

    def __init__(self, seal: Seal, kinds: Collection[Kind], generation: int = 0) -> None:
        self.generation = generation
        self._seal = seal
        self._kinds = frozenset(kinds)
        self._sequence = 0
        self._buffer = bytearray()
        self._frame: Frame | None = None

    def header(self, data: bytes | bytearray | memoryview) -> Frame:
        """The next header, from its 64 bytes."""
        view = memoryview(data)
        magic, version, kind, reserved, generation, sequence, length, digest = _FIELDS.unpack(view[: _FIELDS.size])
        if magic != MAGIC:
            raise ProtocolError(f"a frame begins with {magic!r} instead of {MAGIC!r}")
        if version != VERSION:
            raise ProtocolError(f"a frame has protocol version {version}, this is version {VERSION}")
        if sequence > MAX_SEQUENCE or not compare_digest(self._seal.header(sequence, view[: _FIELDS.size]), view[_FIELDS.size :]):
            raise ProtocolError("a frame's header was damaged or forged on its way")
        if sequence != self._sequence:
            raise ProtocolError(f"frame {self._sequence} was expected, frame {sequence} came: it is replayed, or others are lost")
        if generation < self.generation:
            raise ProtocolError(f"a frame is of generation {generation}, but generation {self.generation} has begun")
        if reserved or kind not in self._kinds:
            raise ProtocolError(f"a frame of kind {kind} was not expected here")
        if length > MOST_BYTES[Kind(kind)]:
            raise ProtocolError(f"a {Kind(kind).name} frame claims {length} bytes, at most {MOST_BYTES[Kind(kind)]} are taken")
        self._sequence += 1
        self.generation = generation
        return Frame(Kind(kind), generation, sequence, length, digest)

    def check(self, frame: Frame, payload: bytes | memoryview) -> None:
        """Refuse a payload that is not the one its sender saw."""
        if len(payload) != frame.length or not compare_digest(self._seal.payload(frame.sequence, payload), frame.digest):
            raise ProtocolError(f"the payload of a {frame.kind.name} frame was damaged or forged on its way")

    # --- a stream of small frames ---------------------------------------------------------------------------

    @property
    def missing_bytes(self) -> int:
        """How much of a frame that has begun is still to come; 0 between frames."""
        if self._frame is not None:
            return max(self._frame.length - len(self._buffer), 0)
        return HEADER_BYTES - len(self._buffer) if self._buffer else 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take in what came."""
        self._buffer += data

    def next(self) -> tuple[Frame, bytes] | None:
        """The next whole frame and its payload, or None when more must come first."""
        if self._frame is None:
            if len(self._buffer) < HEADER_BYTES:
                return None
            self._frame = self.header(self._buffer[:HEADER_BYTES])
            del self._buffer[:HEADER_BYTES]
        frame = self._frame
        if len(self._buffer) < frame.length:
            return None
        payload = bytes(memoryview(self._buffer)[: frame.length])
        del self._buffer[: frame.length]
        self._frame = None
        self.check(frame, payload)
        return frame, payload
