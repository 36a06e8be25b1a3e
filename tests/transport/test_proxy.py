"""The proxy that spoils connections does what its weather says, no more, and the same harm for the same seed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import NamedTuple

import pytest

from paceline.transport.dial import Endpoint
from proxy import FAIR, HARMS, Harm, Proxy, Weather

SENT = bytes(range(256)) * 40


class Ends(NamedTuple):
    """A connection through a proxy: the end that has connected, and the other one."""

    proxy: Proxy
    near: socket.socket
    far: socket.socket


@contextmanager
def connected(outward: Weather = FAIR, inward: Weather = FAIR, seed: int = 0) -> Iterator[Ends]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Proxy(Endpoint(*listener.getsockname()[:2]), seed=seed, outward=outward, inward=inward) as proxy,
        socket.create_connection(proxy.endpoint, 5.0) as near,
    ):
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.settimeout(5.0)
        far, _ = listener.accept()
        with far:
            far.settimeout(5.0)
            yield Ends(proxy, near, far)


def read(sock: socket.socket, size: int = 1 << 30) -> bytes:
    """So many bytes, fewer at the end of the stream."""
    got = b""
    while len(got) < size and (data := sock.recv(1 << 16)):
        got += data
    return got


def is_silent(sock: socket.socket) -> bool:
    sock.settimeout(0.05)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(5.0)
    return False


def came_of(weather: Weather, seed: int = 0, cuts: int = len(SENT)) -> bytes:
    """What is left of what was sent in pieces of `cuts` bytes, up to the end or the reset."""
    with connected(weather, seed=seed) as (proxy, near, far):
        for start in range(0, len(SENT), cuts):
            near.sendall(SENT[start : start + cuts])
        near.shutdown(socket.SHUT_WR)
        if weather.harm == "hole":
            deadline_s = monotonic() + 5.0
            while len(proxy.said[0]) < len(SENT):
                assert monotonic() < deadline_s
                sleep(0.001)
            # all of it is in the proxy's hands, which passes it on without a delay
            got = b""
            far.settimeout(0.2)
            with suppress(TimeoutError):
                while data := far.recv(1 << 16):
                    got += data
            return got
        return read(far)


def test_in_fair_weather_bytes_and_ends_pass_both_ways() -> None:
    with connected() as (proxy, near, far):
        near.sendall(SENT)
        near.shutdown(socket.SHUT_WR)
        assert read(far) == SENT
        far.sendall(SENT[::-1])
        far.shutdown(socket.SHUT_WR)
        assert read(near) == SENT[::-1]
        assert [bytes(said) for said in proxy.said] == [SENT]


def test_whoever_listens_no_more_is_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        behind = Endpoint(*listener.getsockname()[:2])
    with Proxy(behind) as proxy, pytest.raises(ConnectionResetError), socket.create_connection(proxy.endpoint, 5.0) as near:
        near.recv(1)


def test_latency_and_jitter_delay_each_way_and_keep_the_order() -> None:
    with connected(Weather(latency_s=0.03, jitter_s=0.02), Weather(latency_s=0.04)) as (_, near, far):
        began_s = monotonic()
        for start in range(0, len(SENT), 512):
            near.sendall(SENT[start : start + 512])
        assert read(far, len(SENT)) == SENT
        assert monotonic() - began_s >= 0.03
        far.sendall(b"thanks")
        assert near.recv(6) == b"thanks"
        assert 0.07 <= monotonic() - began_s < 2.0


def test_a_narrow_link_takes_its_time_and_slices_what_passes() -> None:
    with connected(Weather(bytes_per_s=2000.0, slice_bytes=10)) as (_, near, far):
        began_s = monotonic()
        near.sendall(SENT[:200])
        sizes: list[int] = []
        while sum(sizes) < 200:
            sizes.append(len(far.recv(1 << 16)))
        assert monotonic() - began_s >= 0.09
        assert len(sizes) > 10


def test_a_hole_swallows_one_way_and_tells_nobody() -> None:
    with connected() as (proxy, near, far):
        proxy.outward = Weather(hole=True)
        near.sendall(SENT)
        far.sendall(b"heard")
        assert read(near, 5) == b"heard"
        near.close()
        assert is_silent(far)


def test_a_reset_reaches_both_ends() -> None:
    with connected() as (proxy, near, far):
        near.sendall(b"a")
        assert read(far, 1) == b"a"
        proxy.reset()
        for sock in (near, far):
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        assert not proxy.num_open


def test_weather_changes_while_bytes_pass_and_spares_other_connections() -> None:
    with connected() as (proxy, near, far):
        for weather, came in ((Weather(harm="flip", first=0), False), (FAIR, True)):
            proxy.outward = weather
            near.sendall(b"word")
            assert (read(far, 4) == b"word") == came
        proxy.spoiled, proxy.outward = {1}, Weather(hole=True)
        near.sendall(b"spared")
        assert read(far, 6) == b"spared"


@pytest.mark.parametrize("harm", [harm for harm in HARMS if harm != "reset"])
def test_the_same_seed_does_the_same_harm_however_the_stream_is_cut(harm: Harm) -> None:
    weather = Weather(harm=harm, every_bytes=1500)
    first = came_of(weather, seed=3)
    assert first != SENT
    assert came_of(weather, seed=3, cuts=97) == first
    assert came_of(weather, seed=4) != first


@pytest.mark.parametrize(
    ("harm", "left"),
    [
        ("flip", None),
        ("double", None),
        ("drop", SENT[:700] + SENT[701:]),
        ("cut", SENT[:700]),
        ("hole", SENT[:700]),
    ],
)
def test_harm_is_done_where_it_is_wanted_and_once(harm: Harm, left: bytes | None) -> None:
    came = came_of(Weather(harm=harm, first=700))
    if left is not None:
        assert came == left
    elif harm == "flip":
        assert [place for place, (one, other) in enumerate(zip(came, SENT, strict=True)) if one != other] == [700]
        assert (came[700] ^ SENT[700]).bit_count() == 1
    else:
        more = len(came) - len(SENT)
        assert 0 < more <= 512
        assert came == SENT[:701] + SENT[701 - more : 701] + SENT[701:]


def test_a_reset_in_mid_stream_comes_where_it_is_wanted() -> None:
    with connected(inward=Weather(harm="reset", first=700)) as (_, near, far):
        sender = threading.Thread(target=far.sendall, args=(SENT,))
        sender.start()
        got = bytearray()
        with pytest.raises(ConnectionResetError):
            got.extend(byte for data in iter(lambda: near.recv(64), b"") for byte in data)
        assert SENT[:700].startswith(got)
        sender.join(5.0)
