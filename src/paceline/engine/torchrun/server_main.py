"""A server's process for workers of every host; it ends with the process that starts it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from paceline.engine.local.child import Brief, begin, listener_of
from paceline.engine.remote.joint import Joint
from paceline.engine.remote.server_port import ServerPort
from paceline.engine.torchrun.place import CONNECT_S, connect_near, silence_of, trust_at
from paceline.errors import PacelineError
from paceline.messages import COORDINATOR, SUPERVISOR, Address, Failed, Listening, ServerHello
from paceline.transport.dial import Endpoint
from paceline.transport.shm import SocketPort
from paceline.transport.tcp import TcpPort


def main() -> int:
    """Run a server."""
    brief, near = begin()
    settings = brief.resolved.settings
    assert brief.coordinator is not None
    try:
        far = TcpPort(brief.me, trust_at(brief.host, os.environ), silence_s=silence_of(os.environ))
        workers = frozenset(Address("worker", number) for number in range(settings.most_workers))
        endpoint = far.listen(brief.host, brief.port, workers)
        if not listens_near(brief, near, workers):
            far.connect(COORDINATOR, Endpoint(*brief.coordinator), timeout_s=CONNECT_S)
    except PacelineError as error:
        near.send(SUPERVISOR, Failed(error.exit_code, str(error)))
        near.close()
        return error.exit_code
    # after the connection, before the second that the import of torch takes
    near.send(SUPERVISOR, Listening(*endpoint))
    import torch

    from paceline.engine.remote.serving import RemoteServer

    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(settings.script).resolve().parent))
    port = ServerPort(Joint(near, far), brief.id)
    process = RemoteServer(port, brief.me, settings.server_device)
    try:
        port.send(COORDINATOR, ServerHello(brief.id, os.getpid(), socket.gethostname()))
        code = process.run().code
    except PacelineError as error:
        code = process.fail(error)
    port.close()
    return code


def listens_near(brief: Brief, near: SocketPort, workers: frozenset[Address]) -> bool:
    """Let the workers of this machine come in; whether the coordinator is reached here as well.

    Who shares memory with all servers and the coordinator reads it in place: it must be one memory. So a server that is on
    the coordinator's machine and does not reach it there is not near to anybody.
    """
    listener = listener_of(brief)
    if connect_near(near, COORDINATOR, brief.coordinator_name):
        listener.close()
    else:
        near.listen(listener, workers)
    return COORDINATOR in near.peers


if __name__ == "__main__":
    sys.exit(main())
