"""Which piece of which tensor a PLACE frame announces: a fixed header that states dtype and shape, as pure bytes.

The receiver has named a place with dtype and shape beforehand; a header that says otherwise is refused, so no byte
from a peer ever chooses a size, a type or an address.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from paceline.errors import ProtocolError
from paceline.transport.wire import MOST_BYTES, PIECE_BYTES, Kind

MAX_DIMENSIONS = 8
MAX_TENSOR_BYTES = 1 << 44
MAX_KEY = (1 << 64) - 1

# dtypes have numbers of their own: names from a wire would have to be looked up in a library
DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
_SIZES = (4, 2, 2, 8, 8, 4, 2, 1, 1, 1)

_HEADER = struct.Struct(f"<QIBBH{MAX_DIMENSIONS}Q")


class Spec(NamedTuple):
    """Dtype and shape of a tensor on the wire.

    >>> Spec("bfloat16", (3, 5)).size_bytes
    30
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The number of bytes of its elements. Python's integers do not overflow, so a product is what it says."""
        size = _SIZES[DTYPES.index(self.dtype)]
        for length in self.shape:
            size *= length
        return size

    @property
    def num_pieces(self) -> int:
        """Into how many pieces it is cut; a tensor without elements is one empty piece."""
        return max(1, -(-self.size_bytes // PIECE_BYTES))

    def piece(self, number: int) -> slice:
        """The bytes of one piece."""
        return slice(number * PIECE_BYTES, min((number + 1) * PIECE_BYTES, self.size_bytes))

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Piece(NamedTuple):
    """One piece of the tensor that both ends know as `key`."""

    key: int
    number: int
    spec: Spec


def check_spec(spec: Spec) -> None:
    """Raise ValueError for a tensor that the wire does not carry."""
    if spec.dtype not in DTYPES:
        raise ValueError(f"a tensor on the wire is one of {', '.join(DTYPES)}, got {spec.dtype}")
    if len(spec.shape) > MAX_DIMENSIONS or any(length < 0 for length in spec.shape) or spec.size_bytes > MAX_TENSOR_BYTES:
        raise ValueError(f"a tensor has at most {MAX_DIMENSIONS} dimensions and {MAX_TENSOR_BYTES} bytes, got {spec}")


def pack_piece(piece: Piece) -> bytes:
    """The 80 bytes that announce a piece."""
    spec = piece.spec
    lengths = (*spec.shape, *(0,) * (MAX_DIMENSIONS - len(spec.shape)))
    return _HEADER.pack(piece.key, piece.number, DTYPES.index(spec.dtype), len(spec.shape), 0, *lengths)


def unpack_piece(data: bytes | memoryview) -> Piece:
    """The piece that a peer announces. Raises ProtocolError when there can be no such piece."""
    if len(data) != _HEADER.size:
        raise ProtocolError(f"a piece is announced in {_HEADER.size} bytes, {len(data)} came")
    key, number, dtype, num_dimensions, reserved, *lengths = _HEADER.unpack(data)
    if dtype >= len(DTYPES):
        raise ProtocolError(f"a peer announces a tensor of dtype number {dtype}, the last one is {len(DTYPES) - 1}")
    if num_dimensions > MAX_DIMENSIONS or reserved or any(lengths[num_dimensions:]):
        raise ProtocolError(f"a peer announces a tensor of {num_dimensions} dimensions with the lengths {lengths}")
    spec = Spec(DTYPES[dtype], tuple(lengths[:num_dimensions]))
    if spec.size_bytes > MAX_TENSOR_BYTES:
        raise ProtocolError(f"a peer announces a tensor of {spec.size_bytes} bytes, at most {MAX_TENSOR_BYTES} are taken")
    if number >= spec.num_pieces:
        raise ProtocolError(f"a peer announces piece {number} of {spec}, which has {spec.num_pieces}")
    return Piece(key, number, spec)


assert _HEADER.size == MOST_BYTES[Kind.PLACE]
