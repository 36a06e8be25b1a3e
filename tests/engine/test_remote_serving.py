"""A pull streams behind the update that it waits for: what is made is with the worker while the optimizer still works."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

import pytest
import torch
from torch import Tensor, nn

from paceline.engine.remote.server_port import ServerPort
from paceline.engine.remote.serving import RemoteServer
from paceline.engine.remote.width import NARROW
from paceline.engine.remote.worker_port import WorkerPort
from paceline.errors import PeerLostError
from paceline.logic.partition import arena_map, layout_of, parameter_arena_bytes
from paceline.messages import COORDINATOR, Address, Attach, Fold, Halt, Hello, Linked, Member, Params, Pull, Ready, Serve, Welcome
from paceline.pace import parse_pace
from paceline.roles.effects import End
from paceline.tensors.shard import Shard
from paceline.tensors.spec import spec_of
from paceline.transport import memory
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from wired import hear

SERVER, WORKER = Address("server", 0), Address("worker", 0)
NUM_ELEMENTS = 3_000_000  # three windows, three pieces


class Watched(RemoteServer):
    """A server that says how far each update has come."""

    hears: Callable[[int], None]

    def _stream(self, shard: Shard, done: int) -> None:
        super()._stream(shard, done)
        self.hears(done)


def shared(size_bytes: int) -> tuple[int, Tensor]:
    fd = memory.create("test", size_bytes)
    return fd, torch.frombuffer(memory.map_shared(fd), dtype=torch.uint8)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("when", ["before", "during"])
def test_windows_arrive_while_the_update_is_made_and_are_the_new_ones(when: str, copy: bool) -> None:
    torch.set_num_threads(1)
    module = nn.Module()
    module.flat = nn.Parameter(torch.zeros(NUM_ELEMENTS))
    spec = spec_of(module, torch.optim.SGD(module.parameters(), lr=1.0))
    places = arena_map(layout_of(spec))
    far, near = TcpPort(SERVER, Trust()), TcpPort(WORKER, Trust())
    port, worker = ServerPort(far, 0), WorkerPort(near, timeout_s=10.0)
    server = Watched(port, SERVER)
    heard: list[int] = []
    try:
        near.connect(SERVER, far.listen("127.0.0.1", 0, {WORKER}), lanes=NARROW)
        parameters, _ = shared(parameter_arena_bytes(layout_of(spec))[1])
        near.send(SERVER, Serve(0, 1, spec, False), (parameters,))
        server._take(hear(port, Serve))
        # the server plays the coordinator, which has no part in this
        worker.send(SERVER, Hello(0, 0, 1, "here", spec))
        hear(port, Hello)
        port.send(WORKER, Welcome(False, 1, 1, 0, parse_pace("sync")))
        stand_in = hear(worker, Welcome).attachments[0]
        own, arena = shared(places.size_bytes)
        worker.send(SERVER, Attach(0, 0), (own,))
        server._take(hear(port, Attach))
        hear(worker, Linked)
        gradient = torch.rand(NUM_ELEMENTS)
        arena[places.gradients[0] :][: 4 * NUM_ELEMENTS].view(torch.float32).copy_(gradient)
        with suppress(PeerLostError):
            worker.send(COORDINATOR, Ready(0, 0, 0, (0,), (), 1, 1.0))
        where = arena[places.parameters :] if copy else torch.frombuffer(memory.map_shared(stand_in), dtype=torch.uint8)
        mine = where[: 4 * NUM_ELEMENTS].view(torch.float32)

        def watch(done: int) -> None:
            heard.append(done)
            if when == "during" and len(heard) == 1:
                worker.send(SERVER, Pull(1, copy=copy))
                return
            deadline_s = monotonic() + 10.0
            number = done // 4
            while done < 4 * NUM_ELEMENTS and not torch.equal(mine[:number], -gradient[:number]):
                assert monotonic() < deadline_s, f"{done} bytes of the update are made and not with the worker"
                sleep(0.001)

        server.hears = watch
        if when == "before":
            worker.send(SERVER, Pull(1, copy=copy))
            server._take(hear(port, Pull))
        near.send(SERVER, Fold(1, (Member(0, 0, 0, 0, 1.0),), 1.0, 1.0))
        server._take(hear(port, Fold))
        assert hear(worker, Params).message == Params(1)
        assert torch.equal(mine, -gradient)
        assert len(heard) == 3
        os.close(own)
        os.close(stand_in)
        os.close(parameters)
    finally:
        near.close(flush_s=0.0)
        far.close(flush_s=0.0)


def test_who_lost_the_coordinator_is_heard_by_a_worker_before_the_servers_end() -> None:
    far, near, coordinator = TcpPort(SERVER, Trust()), TcpPort(WORKER, Trust()), TcpPort(COORDINATOR, Trust())
    server = RemoteServer(ServerPort(far, 0), SERVER)
    try:
        endpoint = far.listen("127.0.0.1", 0, {WORKER, COORDINATOR})
        for port in (near, coordinator):
            port.connect(SERVER, endpoint, lanes=0)
        near.send(SERVER, Pull(1, copy=False))
        server._take(hear(far, Pull))
        # what the server leaves unread must not cost the worker what it was told
        near.send(SERVER, Pull(2, copy=False))
        coordinator.close(flush_s=0.0)
        assert server.run() == End(4, "server 0 lost the coordinator")
        far.close()
        assert hear(near, Halt).message == Halt(4, "server 0 lost the coordinator")
        end = near.receive(10.0)
        assert end is not None
        assert (end.sender, end.message) == (SERVER, None)
    finally:
        for port in (near, coordinator, far):
            port.close(flush_s=0.0)
