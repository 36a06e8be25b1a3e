"""Push, apply (SGD) and pull of 100 MB through the ports of a worker and a server on two hosts. Arguments: wire, steps.

Rank 0 is the worker, and the coordinator too; rank 1 is the server, as a launcher's first worker would start it.
"""

import os
import sys
from pathlib import Path
from time import monotonic, sleep

import torch

from paceline.engine.remote.server_port import ServerPort
from paceline.engine.remote.width import NARROW
from paceline.engine.remote.worker_port import WorkerPort
from paceline.errors import PeerLostError
from paceline.logic.partition import arena_map, layout_of
from paceline.messages import (
    COORDINATOR,
    Address,
    Attach,
    Fold,
    Halt,
    Hello,
    Linked,
    Listening,
    Member,
    Message,
    ModelSpec,
    Params,
    Pull,
    Ready,
    Seeded,
    Serve,
    Serving,
    Welcome,
)
from paceline.pace import parse_pace
from paceline.ports import Delivery, Port
from paceline.tensors.spec import spec_of
from paceline.transport import memory
from paceline.transport.dial import Endpoint
from paceline.transport.keys import read_key_file
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from paceline.transport.wire import Wire
from workload import report, timed

NUMBERS = 25_000_000
SERVER, WORKER = Address("server", 0), Address("worker", 0)
PATIENCE_S = 60.0
RENDEZVOUS = Endpoint("127.0.0.1", int(os.environ["MASTER_PORT"]))


def trust_of(wire: str) -> Trust:
    """How the connections of this contender are protected."""
    if wire in ("none", "xxh3"):
        return Trust(checksum=wire == "xxh3")
    return Trust(read_key_file(Path(os.environ["BENCH_KEY"])), Wire[wire.upper()])


def model() -> ModelSpec:
    """One parameter of 100 MB and SGD."""
    module = torch.nn.Module()
    module.flat = torch.nn.Parameter(torch.zeros(NUMBERS))
    return spec_of(module, torch.optim.SGD(module.parameters(), lr=0.01))


def hear(port: Port, kind: type[Message]) -> Delivery:
    """The next delivery, which is of this kind."""
    delivery = port.receive(PATIENCE_S)
    if delivery is None or not isinstance(delivery.message, kind):
        raise RuntimeError(f"{kind.__name__} was expected, got {delivery}")
    return delivery


def serve(trust: Trust) -> None:
    """Be the server until the coordinator ends it."""
    from paceline.engine.remote.serving import RemoteServer

    port = TcpPort(SERVER, trust)
    endpoint = port.listen("127.0.0.1", 0, {WORKER})
    deadline_s = monotonic() + PATIENCE_S
    while COORDINATOR not in port.peers:
        try:
            port.connect(COORDINATOR, RENDEZVOUS)
        except PeerLostError:
            if monotonic() > deadline_s:
                raise
            sleep(0.05)
    port.send(COORDINATOR, Listening(*endpoint))
    RemoteServer(ServerPort(port, 0), SERVER).run()
    port.close()


class Exchange:
    """The worker, with its gradient in place, and what the coordinator says to make each an update."""

    def __init__(self, trust: Trust) -> None:
        self._hub = TcpPort(COORDINATOR, trust)
        endpoint = self._hub.listen(*RENDEZVOUS, {SERVER, WORKER})
        server = hear(self._hub, Listening).message
        assert isinstance(server, Listening)
        port = TcpPort(WORKER, trust)
        port.connect(COORDINATOR, endpoint)
        port.connect(SERVER, Endpoint(server.host, server.port), lanes=NARROW)
        self._worker = WorkerPort(port, timeout_s=PATIENCE_S)
        self._step = 0
        self._begin(model())

    def _begin(self, spec: ModelSpec) -> None:
        worker, hub, pace = self._worker, self._hub, parse_pace("sync")
        worker.send(COORDINATOR, Hello(0, 0, os.getpid(), "here", spec))
        hear(hub, Hello)
        hub.send(WORKER, Welcome(True, 1, 1, 0, pace))
        hear(worker, Welcome)
        worker.send(COORDINATOR, Seeded(False))
        hub.send(SERVER, Serve(0, 1, spec, False, pace), hear(hub, Seeded).attachments)
        hear(hub, Serving)
        places = arena_map(layout_of(spec))
        arena = memory.create("arena", places.size_bytes)
        data = torch.frombuffer(memory.map_shared(arena), dtype=torch.uint8)
        for start in places.gradients:
            data[start : start + 4 * NUMBERS].view(torch.float32).fill_(1e-3)
        # every page is there before the first measured step, as it is in a run
        data[places.parameters :].fill_(0)
        worker.send(SERVER, Attach(0, 0), (arena,))
        hear(worker, Linked)

    def step(self) -> None:
        """One push, update and pull."""
        step = self._step
        self._step += 1
        self._worker.send(COORDINATOR, Ready(step, 0, step % 2, (step,), (), 1, 1.0))
        hear(self._hub, Ready)
        self._hub.send(SERVER, Fold(step + 1, (Member(0, 0, step, step % 2, 1.0),), 1.0, 1.0))
        self._worker.send(SERVER, Pull(step + 1, False, step - 1))
        hear(self._worker, Params)

    def close(self) -> None:
        """End the server and every connection."""
        self._hub.send(SERVER, Halt(0, ""))
        self._worker.close()
        self._hub.close()


def main() -> None:
    torch.set_num_threads(1)
    trust = trust_of(sys.argv[1])
    if os.environ["RANK"] == "1":
        serve(trust)
        return
    exchange = Exchange(trust)
    report(timed(exchange.step, int(sys.argv[2])))
    exchange.close()


main()
