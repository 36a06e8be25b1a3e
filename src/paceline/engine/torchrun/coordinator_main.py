"""The coordinator's process where workers and servers are reached over TCP; rank 0 starts it and is its parent. No torch."""

from __future__ import annotations

import os
import sys

from paceline.engine.local.child import begin
from paceline.engine.local.coordinator_main import CoordinatorProcess, conduct, expected
from paceline.engine.remote.joint import Joint
from paceline.engine.remote.keeper import RemoteKeeper
from paceline.engine.torchrun.place import trust_at
from paceline.errors import PacelineError
from paceline.messages import SUPERVISOR, Failed, Listening
from paceline.transport.tcp import TcpPort


def main() -> int:
    """Run the coordinator; the exit code is the run's."""
    brief, near = begin(dies_with_parent=False)
    try:
        far = TcpPort(brief.me, trust_at(brief.host, os.environ))
        endpoint = far.listen(brief.host, 0, expected(brief.resolved))
    except PacelineError as error:
        near.send(SUPERVISOR, Failed(error.exit_code, str(error)))
        near.close()
        return error.exit_code
    near.send(SUPERVISOR, Listening(*endpoint))
    port = Joint(near, far)
    return conduct(port, lambda: CoordinatorProcess(port, brief.resolved, keeper=RemoteKeeper(), parent="the process of rank 0"))


if __name__ == "__main__":
    sys.exit(main())
