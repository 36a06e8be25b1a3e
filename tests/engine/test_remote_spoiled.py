"""What a spoiled link makes of pushes and pulls: no Ready without all of its gradient, no Params without all parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from engine.test_remote_ports import SERVER, WORKER, Ends, attached, fill
from paceline.errors import PeerLostError
from paceline.messages import Params, Pull, Ready
from paceline.ports import Delivery
from paceline.transport.dial import Endpoint
from paceline.transport.keys import read_key_file, write_key_file
from paceline.transport.trust import Trust
from paceline.transport.wire import Wire
from proxy import Harm, Proxy, Weather
from wired import DOWN, UP, hear

NUM_ELEMENTS = 5000


@pytest.fixture(params=Wire, ids=lambda wire: wire.name.lower())
def trust(request: pytest.FixtureRequest, tmp_path: Path) -> Trust:
    if request.param is Wire.PLAIN:
        return Trust()
    write_key_file(tmp_path / "job.key")
    return Trust(read_key_file(tmp_path / "job.key"), request.param)


@contextmanager
def attached_through(trust: Trust) -> Iterator[tuple[Ends, Proxy]]:
    """A worker that has attached to a server in good weather."""
    proxies: list[Proxy] = []
    with ExitStack() as stack:

        def between(endpoint: Endpoint) -> Endpoint:
            proxies.append(stack.enter_context(Proxy(endpoint)))
            return proxies[0].endpoint

        ends = stack.enter_context(attached(NUM_ELEMENTS, trust, between, silence_s=1.0, stall_s=1.0))
        yield ends, proxies[0]


def pushed(ends: Ends, step: int) -> list[bytes]:
    """A step's gradient, which is pushed now."""
    sent = [fill(ends.arena, place, 10 * step + number) for number, place in enumerate(ends.parts.gradient(step % 2, 0))]
    ends.push(step)
    return sent


def test_over_a_slow_jittery_sliced_link_pushes_and_pulls_arrive_as_they_were(trust: Trust) -> None:
    with attached_through(trust) as (ends, proxy):
        proxy.outward = proxy.inward = Weather(latency_s=0.002, jitter_s=0.004, slice_bytes=37)
        for step in range(3):
            sent = pushed(ends, step)
            assert [bytes(ends.guest[place]) for place in ends.parts.gradient(step % 2, 0)] == sent
            hear(ends.server, Ready)
            values = fill(ends.shared, ends.parts.shared(0), 100 + step)
            ends.pull(Pull(0, copy=False))
            assert ends.stand_in[ends.parts.shared(0)] == values


@pytest.mark.parametrize("harm", ["flip", *(pytest.param(harm, marks=pytest.mark.slow) for harm in ("double", "drop", "cut", "reset"))])
def test_a_gradient_that_is_spoiled_never_comes_with_its_ready(trust: Trust, harm: Harm) -> None:
    with attached_through(trust) as (ends, proxy):
        pushed(ends, 0)
        hear(ends.server, Ready)
        proxy.spoiled, proxy.outward = {UP}, Weather(harm=harm, first=2 * NUM_ELEMENTS)
        with pytest.raises(PeerLostError, match="server 0"):
            pushed(ends, 1)
        heard: list[Delivery] = []
        while not heard or heard[-1].message is not None:
            delivery = ends.server.receive(5.0)
            assert delivery is not None, "no end came"
            heard.append(delivery)
        assert heard == [Delivery(WORKER, None)]


@pytest.mark.parametrize("harm", ["flip", *(pytest.param(harm, marks=pytest.mark.slow) for harm in ("double", "drop", "cut", "reset"))])
def test_parameters_that_are_spoiled_never_come_with_their_params(trust: Trust, harm: Harm) -> None:
    with attached_through(trust) as (ends, proxy):
        ends.pull(Pull(0, copy=False))
        proxy.spoiled, proxy.inward = {DOWN}, Weather(harm=harm, first=2 * NUM_ELEMENTS)
        ends.worker.send(SERVER, Pull(0, copy=False))
        hear(ends.server, Pull)
        with suppress(PeerLostError):
            ends.server.send(WORKER, Params(1))
        assert ends.worker.receive(5.0) == Delivery(SERVER, None)
