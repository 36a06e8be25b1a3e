"""One incarnation of a worker on the timeline, whatever it is made of: it sends, waits for what arrives, and computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.engine.virtual.compute import Rhythm
from paceline.engine.virtual.network import Ways
from paceline.engine.virtual.timeline import Planned
from paceline.messages import Address
from paceline.ports import Delivery

if TYPE_CHECKING:
    from paceline.engine.virtual.job import Job


class Member(ABC):
    """Worker `id`. `bases` are the versions that it read last; `is_cut_short`: a step that will be dropped ends at once."""

    def __init__(self, job: Job, worker: int, incarnation: int, rhythm: Rhythm, *, is_cut_short: bool = False) -> None:
        self.job, self.id, self.incarnation = job, worker, incarnation
        self.address = Address("worker", worker)
        self.ways: Ways = job.network.ways_of(worker)
        self.bases = [0] * len(job.servers)
        self.num_steps = 0
        self.alive = True
        self._rhythm = rhythm
        self._is_cut_short = is_cut_short
        self._ending: Planned | None = None

    @abstractmethod
    def begin(self) -> None:
        """Start."""

    @abstractmethod
    def arrive(self, delivery: Delivery) -> None:
        """Something has arrived."""

    def stop(self) -> None:
        """It is killed."""
        self.alive = False
        if self._ending is not None:
            self.job.timeline.call_off(self._ending)

    def compute(self, samples: int, done: Callable[[], object], *, factor: float = 1.0) -> None:
        """Take a step of so many samples; `done` is called when it is over."""
        timeline = self.job.timeline
        self.num_steps += 1
        self._done = done
        self._ending = timeline.after(self._rhythm.step_s(samples, timeline.now_s) * factor, self._computed)
        if self._is_cut_short:
            self.job.computing(self, is_begun=True)

    def rest(self, seconds: float, done: Callable[[], object]) -> None:
        """Let time pass."""
        self._done = done
        self._ending = self.job.timeline.after(seconds, self._computed)

    def cut_short(self) -> None:
        """The step is over now."""
        if self._ending is not None:
            self.job.timeline.call_off(self._ending)
            self._computed()

    def _computed(self) -> None:
        self._ending = None
        if self._is_cut_short:
            self.job.computing(self, is_begun=False)
        self._done()
