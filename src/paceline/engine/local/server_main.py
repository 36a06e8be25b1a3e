"""A server's process. It is tied to its parent before the second that the import of torch takes."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from paceline.engine.local.child import begin, end, listener_of, name_of
from paceline.errors import PacelineError
from paceline.messages import COORDINATOR, Address, ServerHello


def main() -> int:
    """Run a server."""
    brief, port = begin()
    import torch

    from paceline.engine.local.serving import ServerProcess

    settings = brief.resolved.settings
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(settings.script).resolve().parent))
    port.listen(listener_of(brief), frozenset(Address("worker", number) for number in range(settings.workers)))
    process = ServerProcess(port, brief.me, settings.server_device)
    try:
        port.connect(COORDINATOR, name_of(brief.token, COORDINATOR))
        port.send(COORDINATOR, ServerHello(brief.id, os.getpid(), socket.gethostname()))
        code = process.run().code
    except PacelineError as error:
        code = process.fail(error)
    port.close()
    return code


if __name__ == "__main__":
    end(main())  # no script ran here, and taking torch down takes a quarter of a second of a core that others need
