"""Ports between a worker and a server that share no memory: what would have been in place is, on both ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import pytest

from paceline.engine.remote.parts import Parts
from paceline.engine.remote.server_port import ServerPort
from paceline.engine.remote.width import NARROW
from paceline.engine.remote.worker_port import WorkerPort
from paceline.errors import PeerLostError
from paceline.messages import (
    Address,
    Attach,
    Finished,
    Hello,
    Linked,
    ModelSpec,
    Params,
    Pull,
    Ready,
    Seeded,
    Serve,
    TensorSpec,
    Welcome,
)
from paceline.pace import parse_pace
from paceline.ports import Delivery
from paceline.transport import memory
from paceline.transport.dial import Endpoint
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from wired import hear

SERVER, WORKER = Address("server", 0), Address("worker", 3)
FROZEN, BUFFER = TensorSpec("frozen", (5,), "float32"), TensorSpec("mean", (7,), "float32")


def model_of(num_elements: int) -> ModelSpec:
    return ModelSpec((TensorSpec("weight", (num_elements,), "float32", 0), FROZEN), (BUFFER,), "torch.optim:SGD", b"", b"", True, True)


class Ends(NamedTuple):
    """Both ports, and their memories: the worker's arena and its stand-in for the shards' memory, and the server's of both."""

    worker: WorkerPort
    server: ServerPort
    parts: Parts
    arena: memoryview
    stand_in: memoryview
    guest: memoryview
    shared: memoryview

    def push(self, step: int) -> None:
        self.worker.send(SERVER, Ready(step, 0, step % 2, (0,), (), 1, 1.0))

    def pull(self, pull: Pull) -> None:
        """A pull and its answer."""
        self.worker.send(SERVER, pull)
        assert hear(self.server, Pull).message == pull
        self.server.send(WORKER, Params(1))
        hear(self.worker, Params)


def mapped(fd: int) -> memoryview:
    try:
        return memoryview(memory.map_shared(fd))
    finally:
        os.close(fd)


@contextmanager
def attached(
    num_elements: int, trust: Trust | None = None, between: Callable[[Endpoint], Endpoint] = lambda it: it, **limits: float
) -> Iterator[Ends]:
    """A worker that has attached to a server, which plays the coordinator too; `between` says where it is reached."""
    model = model_of(num_elements)
    parts = Parts(model, 1)
    far, near = (TcpPort(me, trust or Trust(), **limits) for me in (SERVER, WORKER))
    try:
        near.connect(SERVER, between(far.listen("127.0.0.1", 0, {WORKER})), lanes=NARROW)
        worker, server = WorkerPort(near, timeout_s=10.0), ServerPort(far, 0)
        worker.send(SERVER, Hello(WORKER.id, 0, 1, "here", model))
        hear(server, Hello)
        server.send(WORKER, Welcome(True, 1, 1, 0, parse_pace("sync")))
        stand_in = mapped(hear(worker, Welcome).attachments[0])
        stand_in[:] = bytes(index % 251 for index in range(len(stand_in)))
        worker.send(SERVER, Seeded(False))
        values = hear(server, Seeded).attachments[0]
        own = memory.create("arena", parts.arena_bytes)
        worker.send(SERVER, Attach(WORKER.id, 0), (own,))
        assert server.receive(0.2) is None  # the size of its memory is known with the model
        near.send(SERVER, Serve(0, 1, model, False), (values,))
        os.close(values)
        shared = mapped(hear(server, Serve).attachments[0])
        guest = mapped(hear(server, Attach).attachments[0])
        server.send(WORKER, Linked())
        hear(worker, Linked)
        yield Ends(worker, server, parts, mapped(own), stand_in, guest, shared)
    finally:
        near.close(flush_s=0.0)
        far.close(flush_s=0.0)


def fill(target: memoryview, place: slice, value: int) -> bytes:
    target[place] = bytes([value]) * (place.stop - place.start)
    return bytes(target[place])


def test_the_initial_values_arrive_as_they_were_written() -> None:
    with attached(1000) as ends:
        assert ends.shared == ends.stand_in


@pytest.mark.parametrize("num_elements", [1000, 3_000_000])
def test_a_gradient_is_in_place_before_its_ready_and_a_pull_where_the_worker_reads(num_elements: int) -> None:
    with attached(num_elements) as ends:
        for step in range(6):
            places = ends.parts.gradient(step % 2, 0)
            sent = [fill(ends.arena, place, 10 * step + number) for number, place in enumerate(places)]
            ends.push(step)
            assert [bytes(ends.guest[place]) for place in places] == sent
            hear(ends.server, Ready)
            private, shared = ends.parts.private(0), ends.parts.shared(0)
            values = fill(ends.guest, private, 100 + step) if step % 2 else fill(ends.shared, shared, 100 + step)
            ends.pull(Pull(0, copy=bool(step % 2)))
            assert (ends.arena[private] if step % 2 else ends.stand_in[shared]) == values


def test_averaged_buffers_and_frozen_parameters_come_with_a_pull_that_asks_for_them() -> None:
    with attached(1000) as ends:
        mean, frozen = ends.parts.mean_buffers, ends.parts.constants
        means, values = fill(ends.guest, mean, 7), fill(ends.shared, frozen, 9)
        ends.pull(Pull(0, copy=True))
        assert not any(ends.arena[mean])
        ends.pull(Pull(0, copy=True, buffers=True))
        assert (ends.arena[mean], ends.stand_in[frozen]) == (means, values)


def test_steps_that_nobody_takes_and_pulls_without_steps_need_no_more_places_than_there_are() -> None:
    with attached(1000) as ends:
        for step in range(40):
            ends.push(step)
            hear(ends.server, Ready)
            for _ in range(1 + 3 * (step % 2)):
                ends.pull(Pull(0, copy=False))


def test_the_last_values_go_with_finished() -> None:
    with attached(1000) as ends:
        fill(ends.shared, ends.parts.shared(0), 5)
        ends.server.send(WORKER, Finished(3))
        parts = [mapped(fd) for fd in hear(ends.worker, Finished).attachments]
        assert [bytes(part) for part in parts] == [bytes(ends.shared[place]) for place in ends.parts.final(0)]


def test_a_server_that_is_gone_is_told_like_any_other() -> None:
    with attached(3_000_000) as ends:
        ends.server.close()
        with pytest.raises(PeerLostError):
            ends.push(0)
        assert ends.worker.receive(5.0) == Delivery(SERVER, None)


@pytest.mark.parametrize("num_shards", [1, 2, 7, 100])
def test_the_parts_of_all_shards_are_the_whole_without_a_gap(num_shards: int) -> None:
    parts = Parts(model_of(1000), num_shards)
    ends = [parts.shared(shard) for shard in range(num_shards)]
    assert ends[0].start == 0
    assert all(one.stop == other.start for one, other in pairwise(ends))
    places = sorted((place.start, place.stop) for shard in range(num_shards) for place in parts.final(shard))
    assert places[0][0] == 0
    assert places[-1][1] == parts.shared_bytes
    assert all(one[1] == other[0] for one, other in pairwise(places))
