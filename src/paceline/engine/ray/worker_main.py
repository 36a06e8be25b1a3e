"""A worker's process that an actor has started: it reaches coordinator and servers and runs the script as ever."""

from __future__ import annotations

import os
import sys
from time import monotonic

from paceline.engine.link import Link, Member, install
from paceline.engine.local.child import Brief
from paceline.engine.local.worker_main import run_worker
from paceline.engine.ray.key import let_go
from paceline.engine.remote.worker_port import WorkerPort
from paceline.engine.surroundings import Surroundings
from paceline.engine.torchrun.place import CONNECT_S, reach_all, silence_of, trust_at
from paceline.messages import COORDINATOR, Address
from paceline.ports import Port
from paceline.roles.patience import LEAST_WAIT_S
from paceline.transport.dial import Endpoint
from paceline.transport.shm import SocketPort
from paceline.transport.tcp import TcpPort


class InActor(Surroundings):
    """A worker that an actor has started."""

    engine = "ray"
    because = "an actor of `paceline run --engine ray` started this process"

    def __init__(self, address: str) -> None:
        self.address = address


def connect(brief: Brief, _: SocketPort) -> Port:
    """Reach the coordinator and every server, those of this machine so that memory is shared. Raises PeerLostError or ProtocolError."""
    settings = brief.resolved.settings
    assert brief.coordinator is not None
    trust = trust_at(brief.host, os.environ)
    let_go(os.environ)
    silence_s = silence_of(os.environ)
    near, far = SocketPort(brief.me), TcpPort(brief.me, trust, incarnation=brief.incarnation, silence_s=silence_s)
    # the life before this one may be thought to be there until its silence is noticed
    deadline_s = monotonic() + silence_s + CONNECT_S
    members = {COORDINATOR: (Endpoint(*brief.coordinator), brief.coordinator_name)}
    members |= {Address("server", shard): (Endpoint(host, port), name) for shard, (host, port, name) in enumerate(brief.servers)}
    port, _reason = reach_all(near, far, members, until_s=deadline_s)
    worker_port = WorkerPort(port, timeout_s=max(settings.patience_s, LEAST_WAIT_S))
    member = Member(brief.id, brief.incarnation, settings.workers, len(brief.servers))
    link = Link(worker_port, member, brief.resolved, InActor(brief.host))
    link.on_written = worker_port.written
    install(link)
    return worker_port


if __name__ == "__main__":
    sys.exit(run_worker(connect))
