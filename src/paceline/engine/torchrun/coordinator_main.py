"""The coordinator's process where workers and servers are reached over TCP; rank 0 or `paceline run` is its parent. No torch."""

from __future__ import annotations

import os
import sys

from paceline.engine.local.child import begin, listener_of
from paceline.engine.local.coordinator_main import CoordinatorProcess, conduct, expected
from paceline.engine.remote.joint import Joint
from paceline.engine.remote.keeper import RemoteKeeper
from paceline.engine.torchrun.place import silence_of, trust_at
from paceline.errors import PacelineError
from paceline.messages import SUPERVISOR, Address, Failed, Listening, Remark
from paceline.transport.tcp import TcpPort


class RemoteCoordinator(CoordinatorProcess):
    """The coordinator's process where no supervisor sees workers die: it tells of those that have left."""

    def _lose(self, who: Address, reason: str, now_s: float) -> None:
        is_news = who.role == "worker" and who not in self._left
        super()._lose(who, reason, now_s)
        if is_news and self._end is None:
            self._tell(Remark(f"{who} was lost ({reason}) and has left, the others go on"))


def main() -> int:
    """Run the coordinator; the exit code is the run's."""
    brief, near = begin(dies_with_parent=False)
    near.listen(listener_of(brief), expected(brief.resolved))
    try:
        far = TcpPort(brief.me, trust_at(brief.host, os.environ), silence_s=silence_of(os.environ))
        endpoint = far.listen(brief.host, brief.port, expected(brief.resolved))
    except PacelineError as error:
        near.send(SUPERVISOR, Failed(error.exit_code, str(error)))
        near.close()
        return error.exit_code
    near.send(SUPERVISOR, Listening(*endpoint))
    port = Joint(near, far)
    parent = "the process of rank 0" if brief.resolved.settings.engine == "torchrun" else "the supervisor (`paceline run`)"
    return conduct(port, lambda: RemoteCoordinator(port, brief.resolved, keeper=RemoteKeeper(), parent=parent))


if __name__ == "__main__":
    sys.exit(main())
