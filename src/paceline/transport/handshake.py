"""How two ends of a connection prove to each other that they hold the job's key, as pure bytes and two generators.

Every part has a fixed size and nothing in it is decoded before it is proved. The one who connects proves itself first,
over nonces of both, so an answer is never given to a stranger and nothing that was recorded works twice. Both ends
derive keys for this one connection; a refusal says why, in one byte that nobody has to believe.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Generator
from enum import IntEnum
from typing import NamedTuple

from paceline.errors import ProtocolError
from paceline.messages import Address
from paceline.transport.wire import VERSION, Wire

MAGIC = b"PLNh"
NONCE_BYTES = 32
PROOF_BYTES = 32
MAX_LANES = 8

_ROLES = ("coordinator", "worker", "server", "supervisor")

# magic, version, wire (of the one who connects) or refusal (of the other), reserved, nonce
_OPENING = struct.Struct(f"<4sBBH{NONCE_BYTES}s")
# role, lane, number, refusal, id, incarnation, generation
_IDENTITY = struct.Struct("<BBBBIQQ")
# role and id of the peer that is wanted
_WANTED = struct.Struct("<B3xI")
INTRODUCTION_BYTES = _IDENTITY.size + _WANTED.size + PROOF_BYTES
VERDICT_BYTES = _IDENTITY.size + PROOF_BYTES


class Lane(IntEnum):
    """What a connection is for. Tensors travel one way in each, so that no socket is used by two threads."""

    CONTROL = 0
    PULSE = 1
    UP = 2
    """Tensors from the one who connected."""
    DOWN = 3
    """Tensors to the one who connected."""


class Refusal(IntEnum):
    """Why a connection is not taken in."""

    NONE = 0
    VERSION = 1
    WIRE = 2
    KEY = 3
    STRANGER = 4
    TAKEN = 5
    USED = 6
    GENERATION = 7
    LANE = 8
    ELSEWHERE = 9


_WHY = {
    Refusal.VERSION: "it speaks another version of the protocol: is the same Paceline installed on both?",
    Refusal.WIRE: "the two do not protect the connection in the same way: has each the key file, and the same --wire?",
    Refusal.KEY: "the two do not have the same key: give every host the same key file",
    Refusal.STRANGER: "this peer is not expected there",
    Refusal.TAKEN: "a peer of this name is connected already",
    Refusal.USED: "a peer with this name and incarnation was connected before",
    Refusal.GENERATION: "one of them belongs to an older generation of the job",
    Refusal.LANE: "this connection belongs to no peer that is connected",
    Refusal.ELSEWHERE: "it was looking for another peer",
}


class Identity(NamedTuple):
    """Who is at one end of a connection, and what the connection is for; `generation` is the newest it knows."""

    address: Address
    lane: Lane
    number: int = 0
    incarnation: int = 0
    generation: int = 0


class Session(NamedTuple):
    """A connection whose ends have proved themselves: the other end, and the keys of its two directions."""

    peer: Identity
    send_key: bytes
    receive_key: bytes


Need = tuple[bytes, int]
"""What to send now, and how many bytes to wait for then; 0 of them means that the talk goes on with nothing."""
Talk = Generator[Need, bytes, Session]
Admit = Callable[[Identity, Address], tuple[Refusal, Identity]]
"""Whether a peer that has proved itself, and says whom it wants, is let in; and who it has reached."""


def why(refusal: int) -> str:
    """The sentence of a refusal, of any byte that a stranger may send."""
    return _WHY[Refusal(refusal)] if refusal in _WHY else f"it gave the reason {refusal}, which is none"


def connects(me: Identity, peer: Address, *, wire: Wire, key: bytes, nonce: bytes) -> Talk:
    """The talk of the one who connects. Raises ProtocolError when the other end is not `peer` or refuses."""
    hello = _OPENING.pack(MAGIC, VERSION, wire, 0, nonce)
    challenge = yield hello, _OPENING.size
    _check_opening(challenge)
    refusal = _OPENING.unpack(challenge)[2]
    if refusal:
        raise ProtocolError(why(refusal))
    introduction = _pack(me, Refusal.NONE) + _WANTED.pack(_ROLES.index(peer.role), peer.id)
    transcript = hello + challenge + introduction
    proof = _proof(key, b"connects", transcript)
    verdict = yield introduction + proof, VERDICT_BYTES
    body, their_proof = verdict[: _IDENTITY.size], verdict[_IDENTITY.size :]
    refusal = _IDENTITY.unpack(body)[3]
    if refusal == Refusal.KEY:
        raise ProtocolError(why(Refusal.KEY))
    if not hmac.compare_digest(_proof(key, b"accepts", transcript + proof + body), their_proof):
        raise ProtocolError("it does not hold the job's key, or the connection was tampered with")
    reached = _unpack(body)
    if refusal == Refusal.ELSEWHERE or reached.address != peer:
        raise ProtocolError(f"{reached.address} answered there")
    if refusal:
        raise ProtocolError(why(refusal))
    if reached.generation < me.generation:
        raise ProtocolError(why(Refusal.GENERATION))
    up, down = _keys(key, transcript + proof + body)
    return Session(reached, up, down)


def accepts(admit: Admit, *, wire: Wire, key: bytes, nonce: bytes) -> Talk:
    """The talk of the one who is connected to. Raises ProtocolError when the peer is turned away, after telling it why."""
    hello = yield b"", _OPENING.size
    refusal = _refusal_of(hello, wire)
    challenge = _OPENING.pack(MAGIC, VERSION, refusal, 0, nonce)
    if refusal:
        yield challenge, 0
        raise ProtocolError(f"a stranger was turned away: {why(refusal)}")
    introduction = yield challenge, INTRODUCTION_BYTES
    said, proof = introduction[:-PROOF_BYTES], introduction[-PROOF_BYTES:]
    transcript = hello + challenge + said
    if not hmac.compare_digest(_proof(key, b"connects", transcript), proof):
        # who does not prove the key gets no proof either
        yield _IDENTITY.pack(0, 0, 0, Refusal.KEY, 0, 0, 0) + bytes(PROOF_BYTES), 0
        raise ProtocolError(f"a stranger was turned away: {why(Refusal.KEY)}")
    peer = _unpack(said[: _IDENTITY.size])
    refusal, me = admit(peer, _unpack_wanted(said[_IDENTITY.size :]))
    answer = _pack(me, refusal)
    yield answer + _proof(key, b"accepts", transcript + proof + answer), 0
    if refusal:
        raise ProtocolError(f"{peer.address} was turned away: {why(refusal)}")
    up, down = _keys(key, transcript + proof + answer)
    return Session(peer, down, up)


def _check_opening(opening: bytes) -> None:
    magic, version, _, reserved, _ = _OPENING.unpack(opening)
    if magic != MAGIC or reserved:
        raise ProtocolError("it does not speak Paceline's protocol")
    if version != VERSION:
        raise ProtocolError(f"it speaks version {version} of the protocol, this is version {VERSION}")


def _refusal_of(hello: bytes, wire: Wire) -> Refusal:
    magic, version, their_wire, reserved, _ = _OPENING.unpack(hello)
    if magic != MAGIC or reserved:
        raise ProtocolError("a stranger was turned away: it does not speak Paceline's protocol")
    if version != VERSION:
        return Refusal.VERSION
    return Refusal.NONE if their_wire == wire else Refusal.WIRE


def _pack(identity: Identity, refusal: Refusal) -> bytes:
    address, lane, number, incarnation, generation = identity
    return _IDENTITY.pack(_ROLES.index(address.role), lane, number, refusal, address.id, incarnation, generation)


def _unpack(body: bytes) -> Identity:
    role, lane, number, _, id_of_role, incarnation, generation = _IDENTITY.unpack(body)
    if role >= len(_ROLES) or lane >= len(Lane) or number >= MAX_LANES:
        raise ProtocolError(f"a peer says that it is of role {role} with lane {lane}, number {number}")
    return Identity(Address(_ROLES[role], id_of_role), Lane(lane), number, incarnation, generation)


def _unpack_wanted(wanted: bytes) -> Address:
    role, id_of_role = _WANTED.unpack(wanted)
    if role >= len(_ROLES):
        raise ProtocolError(f"a peer looks for one of role {role}")
    return Address(_ROLES[role], id_of_role)


def _proof(key: bytes, purpose: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, b"paceline 1 " + purpose + b"\0" + transcript, "sha256")


def _keys(key: bytes, transcript: bytes) -> tuple[bytes, bytes]:
    return _proof(key, b"up", transcript), _proof(key, b"down", transcript)
