"""The process of a run that speaks with Ray, so that nothing of Ray is in the process that speaks with the user.

It is the owner of the run's actors: whatever ends it, Ray then ends them. What Ray prints goes into a log of its own.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from paceline.engine.local.child import begin
from paceline.engine.ray.broker import Broker
from paceline.engine.ray.cluster import Cluster, find_address
from paceline.engine.ray.key import received
from paceline.errors import PacelineError, PeerLostError
from paceline.messages import SUPERVISOR, Failed


def main() -> int:
    """Run the broker."""
    brief, port = begin()
    settings = brief.resolved.settings
    try:
        cluster = Cluster(find_address(settings.address), settings.most_workers + settings.servers)
        try:
            Broker(port, brief, cluster, received(os.environ)).run()
        finally:
            cluster.close()
    except PacelineError as error:
        with suppress(PeerLostError):
            port.send(SUPERVISOR, Failed(error.exit_code, str(error)))
        return error.exit_code
    finally:
        port.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
