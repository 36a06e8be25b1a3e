"""Gradients that leave during the backward pass: what arrives is what the step had, whatever the script does in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

import pytest
import torch
from torch import Tensor, nn

from paceline.engine.remote.ahead import Ahead
from paceline.engine.remote.server_port import ServerPort
from paceline.engine.remote.width import NARROW, NUM_JUDGED
from paceline.engine.remote.worker_port import WorkerPort
from paceline.errors import PeerLostError
from paceline.logic.partition import arena_map, layout_of, parameter_arena_bytes
from paceline.messages import COORDINATOR, Address, Attach, Hello, Linked, Params, Pull, Ready, Serve, Welcome
from paceline.pace import parse_pace
from paceline.tensors.replica import Replica
from paceline.tensors.spec import spec_of
from paceline.transport import memory
from paceline.transport.departures import Departure, Departures
from paceline.transport.piece import Spec
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from paceline.transport.wire import PIECE_BYTES
from wired import hear

SERVER, WORKER = Address("server", 0), Address("worker", 0)
WIDTH = 1100  # 4.8 MB a layer


# --- what leaves when ------------------------------------------------------------------------------------


def ahead_of(*sizes: int) -> tuple[Ahead, Callable[[int], set[int]]]:
    """Shards of so many bytes, and what has been released of each."""
    spans: dict[int, slice] = {}
    for shard, size in enumerate(sizes):
        start = spans[shard - 1].stop if shard else 0
        spans[shard] = slice(start, start + size)
    departures = Departures(SERVER)

    def begin(shard: int) -> Departure:
        return departures.start(shard, Spec("uint8", (sizes[shard],)), memoryview(bytes(sizes[shard])), is_guess=True)

    ahead = Ahead(spans, begin)
    return ahead, lambda shard: ahead.departures[shard].released if shard in ahead.departures else set()


def test_a_piece_leaves_when_all_of_it_is_written_and_one_of_each_tensor_stays() -> None:
    ahead, released = ahead_of(3 * PIECE_BYTES, PIECE_BYTES, 2 * PIECE_BYTES)
    ahead.written(5 * PIECE_BYTES - 128, 6 * PIECE_BYTES - 20)
    assert released(2) == {1}
    ahead.written(PIECE_BYTES + 64, 5 * PIECE_BYTES - 128)
    assert (released(0), released(1), released(2)) == ({2}, set(), {1})
    ahead.written(0, PIECE_BYTES + 64)
    assert released(0) in ({2, 0}, {2, 1})
    assert not ahead.is_missed


def test_what_is_written_again_is_a_miss_once_it_has_left_and_none_before() -> None:
    ahead, released = ahead_of(3 * PIECE_BYTES)
    ahead.written(0, 64)
    ahead.written(0, 64)
    ahead.written(64, PIECE_BYTES - 64)
    assert not released(0)
    assert not ahead.is_missed
    ahead.written(PIECE_BYTES - 64, PIECE_BYTES)
    assert released(0) == {0}
    ahead.written(64, PIECE_BYTES - 64)
    assert ahead.is_missed
    ahead.written(PIECE_BYTES, 3 * PIECE_BYTES)
    assert released(0) == {0}


# --- real backward passes --------------------------------------------------------------------------------


def shared(size_bytes: int) -> tuple[int, Tensor]:
    fd = memory.create("test", size_bytes)
    return fd, torch.frombuffer(memory.map_shared(fd), dtype=torch.uint8)


class Job:
    """A worker with a model of three layers, and a server that shares no memory with it and makes no updates."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        spec = spec_of(self.model, self.optimizer)
        layout = layout_of(spec)
        self.places, self.size = arena_map(layout), layout.trainable_bytes
        self.far, self.near = TcpPort(SERVER, Trust()), TcpPort(WORKER, Trust())
        self.server, self.worker = ServerPort(self.far, 0), WorkerPort(self.near, timeout_s=10.0)
        self.near.connect(SERVER, self.far.listen("127.0.0.1", 0, {WORKER}), lanes=NARROW)
        values_fd, values = shared(parameter_arena_bytes(layout)[1])
        self.near.send(SERVER, Serve(0, 1, spec, False), (values_fd,))
        hear(self.server, Serve)
        self.worker.send(SERVER, Hello(0, 0, 1, "here", spec))
        hear(self.server, Hello)
        self.server.send(WORKER, Welcome(False, 1, 1, 0, parse_pace("sync")))
        hear(self.worker, Welcome)
        own_fd, self.arena = shared(self.places.size_bytes)
        self.worker.send(SERVER, Attach(0, 0), (own_fd,))
        self.guest = torch.frombuffer(memory.map_shared(hear(self.server, Attach).attachments[0]), dtype=torch.uint8)
        self.server.send(WORKER, Linked())
        hear(self.worker, Linked)
        self.replica = Replica(self.model, self.optimizer, spec, self.arena, values)
        self.replica.seed()
        self.replica.point("shards")
        self.replica.tell_of_gradients(self.worker.written)
        self.number = 0

    def backward(self) -> None:
        # another one every time
        (self.model(torch.randn(2, WIDTH)) ** 2).mean().backward()

    def gradient(self, of: Tensor) -> Tensor:
        return of[self.places.gradients[self.number % 2] :][: self.size]

    def pieces_there(self) -> int:
        return sum(
            torch.equal(ours, theirs)
            for ours, theirs in zip(self.gradient(self.arena).split(PIECE_BYTES), self.gradient(self.guest).split(PIECE_BYTES), strict=True)
        )

    def step(self) -> None:
        """Publish, and see that it is there to the last bit; then a pull, and the next one."""
        self.replica.finish_gradient()
        # the coordinator has no part in this
        with suppress(PeerLostError):
            self.worker.send(COORDINATOR, Ready(self.number, 0, self.number % 2, (0,), (), 1, 1.0))
        assert torch.equal(self.gradient(self.arena), self.gradient(self.guest))
        self.number += 1
        self.worker.send(SERVER, Pull(0, copy=True))
        hear(self.server, Pull)
        self.server.send(WORKER, Params(0))
        hear(self.worker, Params)
        self.replica.flip(self.number % 2)
        self.optimizer.zero_grad()

    def learn_speed(self) -> None:
        """Steps until nothing more is to be learned of the link, none of which sends ahead."""
        for _ in range(NUM_JUDGED):
            self.backward()
            self.step()

    def close(self) -> None:
        self.near.close(flush_s=0.0)
        self.far.close(flush_s=0.0)


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture(autouse=True)
def closed(job: Job):
    yield
    job.close()


def until(happens: Callable[[], bool]) -> None:
    deadline_s = monotonic() + 10.0
    while not happens():
        assert monotonic() < deadline_s, "it did not happen"
        sleep(0.002)


def test_pieces_are_there_before_the_step_and_steps_go_on_like_that(job: Job) -> None:
    job.learn_speed()
    for _ in range(4):
        job.backward()
        # one of four stays, and it is another gradient than the one before in this buffer
        until(lambda: job.pieces_there() == 3)
        job.step()


def accumulate(job: Job) -> None:
    job.backward()


def clip(job: Job) -> None:
    nn.utils.clip_grad_norm_(job.model.parameters(), 1e-3)


def unscale(job: Job) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(job.optimizer)


def replace(job: Job) -> None:
    first = next(job.model.parameters())
    first.grad = torch.full_like(first, 3.0)


def drop(job: Job) -> None:
    job.model[2].weight.grad = None


def mask(job: Job) -> None:
    job.model[2].weight.grad.data[-1] = 0.0  # moves no version counter


@pytest.mark.parametrize("change", [accumulate, clip, unscale, replace, drop, mask])
def test_what_a_script_changes_before_its_step_arrives_changed_and_nothing_leaves_ahead_after_that(
    change: Callable[[Job], None], job: Job
) -> None:
    job.learn_speed()
    job.backward()
    until(lambda: job.pieces_there() == 3)
    change(job)
    job.step()
    job.backward()
    sleep(0.05)
    assert job.pieces_there() == 0
    change(job)
    job.step()


def test_a_gradient_that_changes_while_it_leaves_harms_no_connection(job: Job) -> None:
    job.learn_speed()
    job.backward()
    ends = threading.Event()
    weight = job.model[2].weight

    def write() -> None:
        while not ends.is_set():
            weight.grad.add_(1.0)

    writer = threading.Thread(target=write)
    writer.start()
    sleep(0.05)
    ends.set()
    writer.join()
    job.step()
    assert job.far.peers
    job.backward()
    job.step()
