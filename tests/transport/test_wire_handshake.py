"""The handshake as bytes: both ends prove the key, nothing that was recorded works again, and noise gets no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ProtocolError
from paceline.messages import COORDINATOR, Address
from paceline.transport.handshake import Identity, Lane, Refusal, Session, Talk, accepts, connects
from paceline.transport.wire import Wire

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
ME = Identity(Address("worker", 7), Lane.CONTROL, 0, incarnation=2, generation=3)
THEM = Identity(COORDINATOR, Lane.CONTROL, 0, incarnation=0, generation=3)


@dataclass
class Conversation:
    """What two ends said, and what each came to: a session or the sentence of its refusal."""

    said: list[tuple[str, bytes]] = field(default_factory=list)
    ends: dict[str, Session | str] = field(default_factory=dict)


Tamper = Callable[[int, bytes], bytes]


def converse(caller: Talk, answerer: Talk, tamper: Tamper = lambda _, data: data) -> Conversation:
    """Let two talks speak, with somebody between them."""
    talk = Conversation()
    talks, needs, inbox = {"caller": caller, "answerer": answerer}, {"caller": 0, "answerer": 0}, {"caller": b"", "answerer": b""}
    heard: dict[str, bytes | None] = {"caller": None, "answerer": None}
    moved = True
    while moved:
        moved = False
        for name, other in (("caller", "answerer"), ("answerer", "caller")):
            if name in talk.ends or len(inbox[name]) < needs[name]:
                continue
            taken, inbox[name] = inbox[name][: needs[name]], inbox[name][needs[name] :]
            first, heard[name] = heard[name] is None, taken
            try:
                outgoing, needs[name] = next(talks[name]) if first else talks[name].send(taken)
            except StopIteration as end:
                talk.ends[name] = end.value
            except ProtocolError as error:
                talk.ends[name] = str(error)
            else:
                if outgoing:
                    inbox[other] += tamper(len(talk.said), outgoing)
                    talk.said.append((name, outgoing))
            moved = True
    return talk


def answerer(key: bytes = KEY, *, wire: Wire = Wire.MAC, nonce: bytes = b"n" * 32, refusal: Refusal = Refusal.NONE) -> Talk:
    return accepts(
        lambda _, wanted: (refusal, THEM) if wanted == COORDINATOR else (Refusal.ELSEWHERE, THEM), wire=wire, key=key, nonce=nonce
    )


def caller(key: bytes = KEY, *, wire: Wire = Wire.MAC, nonce: bytes = b"m" * 32, peer: Address = COORDINATOR, me: Identity = ME) -> Talk:
    return connects(me, peer, wire=wire, key=key, nonce=nonce)


def test_two_ends_with_one_key_know_each_other_and_share_keys() -> None:
    ends = converse(caller(), answerer()).ends
    ours, theirs = ends["caller"], ends["answerer"]
    assert isinstance(ours, Session)
    assert isinstance(theirs, Session)
    assert (ours.peer, theirs.peer) == (THEM, ME)
    assert (ours.send_key, ours.receive_key) == (theirs.receive_key, theirs.send_key)
    assert ours.send_key != ours.receive_key
    assert KEY not in (ours.send_key, ours.receive_key)


def test_no_two_connections_share_a_key() -> None:
    nonces = [(b"a" * 32, b"b" * 32), (b"a" * 32, b"c" * 32), (b"c" * 32, b"b" * 32)]
    sessions = [converse(caller(nonce=one), answerer(nonce=two)).ends["caller"] for one, two in nonces]
    assert len({session.send_key for session in sessions if isinstance(session, Session)}) == 3


@pytest.mark.parametrize("keys", [(KEY, OTHER_KEY), (OTHER_KEY, KEY), (b"", KEY), (KEY, b"")])
def test_another_key_is_told_to_both_in_words(keys: tuple[bytes, bytes]) -> None:
    ends = converse(caller(keys[0]), answerer(keys[1])).ends
    assert ends["caller"] == "the two do not have the same key: give every host the same key file"
    assert "do not have the same key" in str(ends["answerer"])


def test_who_answers_gives_no_proof_to_a_stranger() -> None:
    said = converse(caller(OTHER_KEY), answerer()).said
    assert said[-1][0] == "answerer"
    assert said[-1][1][-32:] == bytes(32)


@pytest.mark.parametrize("refusal", [r for r in Refusal if r not in (Refusal.NONE, Refusal.KEY, Refusal.ELSEWHERE)])
def test_a_refusal_is_proved_and_told_to_both(refusal: Refusal) -> None:
    talk = converse(caller(), answerer(refusal=refusal))
    assert isinstance(talk.ends["caller"], str)
    assert talk.ends["caller"] in str(talk.ends["answerer"])
    assert "worker 7" in str(talk.ends["answerer"])
    assert talk.said[-1][1][-32:] != bytes(32)


def test_ends_that_protect_the_connection_differently_say_so() -> None:
    for ends in (converse(caller(wire=Wire.PLAIN), answerer()).ends, converse(caller(), answerer(wire=Wire.PLAIN)).ends):
        assert "do not protect the connection in the same way" in str(ends["caller"])
        assert "do not protect the connection in the same way" in str(ends["answerer"])


def test_another_peer_at_the_address_is_named() -> None:
    ends = converse(caller(peer=Address("server", 2)), answerer()).ends
    assert ends["caller"] == "coordinator answered there"
    assert ends["answerer"] == "worker 7 was turned away: it was looking for another peer"


def test_a_coordinator_of_an_older_generation_is_refused_by_the_worker() -> None:
    assert "older generation" in str(converse(caller(me=ME._replace(generation=9)), answerer()).ends["caller"])


def test_a_recorded_join_does_not_work_again() -> None:
    recorded = [data for name, data in converse(caller(), answerer()).said if name == "caller"]
    again = answerer(nonce=b"fresh" + b"n" * 27)
    next(again)
    again.send(recorded[0])
    refusal, _ = again.send(recorded[1])
    assert refusal[-32:] == bytes(32)
    with pytest.raises(ProtocolError, match="do not have the same key"):
        next(again)


def test_an_answer_cannot_be_played_back_to_its_sender() -> None:
    """Reflection: the proof of one who connects is none of one who accepts."""
    talk = caller()
    hello, _ = next(talk)
    introduction, _ = talk.send(hello[:5] + b"\0" + hello[6:])
    with pytest.raises(ProtocolError, match="does not hold the job's key"):
        talk.send(introduction)


@given(st.integers(0, 3), st.data())
def test_every_bit_that_is_changed_on_the_way_ends_the_handshake(which: int, data: st.DataObject) -> None:
    def flip(number: int, sent: bytes) -> bytes:
        if number != which:
            return sent
        bit = data.draw(st.integers(0, len(sent) * 8 - 1))
        changed = bytearray(sent)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    ends = converse(caller(), answerer(), flip).ends
    assert not any(isinstance(ends.get(name), Session) for name in (["caller"] if which == 3 else ["caller", "answerer"]))


@given(st.sampled_from([caller, answerer]), st.binary(min_size=40, max_size=40), st.binary(min_size=64, max_size=64), st.booleans())
def test_noise_is_refused_by_both_ends_and_raises_nothing_else(
    end: Callable[[], Talk], opening: bytes, introduction: bytes, well_begun: bool
) -> None:
    def hear_noise() -> None:
        talk = end()
        next(talk)
        talk.send(b"PLNh\x01" + bytes([Wire.MAC if end is answerer else 0]) + bytes(2) + opening[8:] if well_begun else opening)
        talk.send(introduction)
        next(talk)

    with pytest.raises(ProtocolError):
        hear_noise()
