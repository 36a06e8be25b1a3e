"""The coordinator's part that ends a job well: once every worker has said goodbye, each server tells its last version."""

from __future__ import annotations

from paceline.messages import Address, Finish
from paceline.roles.job import Job
from paceline.roles.patience import LEAST_WAIT_S


class Ending:
    """It begins when all workers are gone of whom some script has ended well (`job.said_bye`)."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._since_s: float | None = None
        self._finished: set[int] = set()

    @property
    def has_begun(self) -> bool:
        """Whether the servers are asked to finish."""
        return self._since_s is not None

    def settle(self) -> None:
        """Ask the servers to finish when it is time."""
        if not self.job.said_bye or self.job.members.workers or self.has_begun:
            return
        self._since_s = self.job.now_s
        for server in self.job.all_servers:
            self.job.send(server, Finish())
        self._end_if_finished()

    def has_finished(self, server: Address) -> bool:
        """Whether a server has told its last version."""
        return server.id in self._finished

    def finished(self, server: Address) -> None:
        """A server has told its last version, or never held a shard."""
        self._finished.add(server.id)
        self._end_if_finished()

    def expire(self) -> None:
        """Servers that do not finish are waited for so long and named."""
        job = self.job
        limit_s = max(job.settings.patience_s, LEAST_WAIT_S)
        if self._since_s is not None and job.now_s - self._since_s > limit_s:
            missing = ", ".join(str(server) for server in job.all_servers if not self.has_finished(server))
            job.end(5, f"waited {limit_s:g} s for {missing} to finish")

    def _end_if_finished(self) -> None:
        if not self.has_begun or len(self._finished) < len(self.job.all_servers):
            return
        if self.job.accounts.samples == 0:
            self.job.end(1, "the run ended without a single update: no sample was folded")
        else:
            self.job.end(0, self.job.stopping)
