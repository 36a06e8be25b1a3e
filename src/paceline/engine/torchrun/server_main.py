"""A server's process where workers are reached over TCP; a host's first worker starts it, and it ends with that one."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from paceline.engine.local.child import begin
from paceline.engine.remote.server_port import ServerPort
from paceline.engine.torchrun.place import CONNECT_S, SILENCE_S, trust_at
from paceline.errors import PacelineError
from paceline.messages import COORDINATOR, SUPERVISOR, Address, Failed, Listening, ServerHello
from paceline.transport.dial import Endpoint
from paceline.transport.tcp import TcpPort


def main() -> int:
    """Run a server."""
    brief, near = begin()
    settings = brief.resolved.settings
    assert brief.coordinator is not None
    try:
        far = TcpPort(brief.me, trust_at(brief.host, os.environ), silence_s=SILENCE_S)
        endpoint = far.listen(brief.host, 0, frozenset(Address("worker", number) for number in range(settings.workers)))
        far.connect(COORDINATOR, Endpoint(*brief.coordinator), timeout_s=CONNECT_S)
    except PacelineError as error:
        near.send(SUPERVISOR, Failed(error.exit_code, str(error)))
        near.close()
        return error.exit_code
    # after the connection, before the second that the import of torch takes
    near.send(SUPERVISOR, Listening(*endpoint))
    import torch

    from paceline.engine.local.serving import ServerProcess

    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(settings.script).resolve().parent))
    process = ServerProcess(ServerPort(far, brief.id), brief.me)
    try:
        far.send(COORDINATOR, ServerHello(brief.id, os.getpid(), socket.gethostname()))
        code = process.run().code
    except PacelineError as error:
        code = process.fail(error)
    far.close()
    near.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
