"""This process as a worker of a run: its conversations with the others, its steps, and what it counts on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from paceline.engine.link import Link
from paceline.errors import UsageError
from paceline.messages import Start
from paceline.roles.applier import Applier
from paceline.roles.effects import Send
from paceline.roles.talk import Gradient, Talk, Together
from paceline.roles.worker import WorkerRole
from paceline.session.meter import Meter
from paceline.session.run import say
from paceline.session.slow import Handicap
from paceline.session.whole import Whole
from paceline.tensors.replica import Replica

T = TypeVar("T")

CLIPPED_PART = (
    "gradients were changed between backward and opt.step(); that clips or scales this worker's part only, before it is "
    "averaged with the others'; to clip the whole gradient use run.clip_grad_norm_(max_norm)"
)
NO_BATCH = "opt.step() was called without a batch of the prepared loader; each step needs at least one, inside the loader's loop"


class Worker:
    """Drives `role` over `link` with `replica`; `is_broken` once a conversation has failed, `is_over` once the script is.

    `even_samples` are those of a step where batches are cut and all parts even; 0: batches are whole.
    """

    def __init__(
        self,
        link: Link,
        role: WorkerRole,
        replica: Replica,
        handicap: Handicap,
        *,
        meter: Meter | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.link, self.role, self.replica, self.handicap = link, role, replica, handicap
        self._applier: Applier | None = None
        self._whole: Whole | None = None
        self.meter = meter or Meter()
        self._sleep = sleep
        self.is_counted = True
        self.is_broken = self.is_over = False
        self.at_first_batch: list[Callable[[], None]] = []
        self.planned_epochs = self.updates_per_epoch = 0
        self.even_samples = 0.0
        self._samples = self._last_samples = self._epoch_samples = 0
        self._epoch = -1
        self._num_calls: dict[str, int] = {}
        self._pulled_bytes = 0
        self._has_warned = False

    # --- conversations ------------------------------------------------------------------------------------

    def converse(self, talk: Talk[T], *, reads: int = 0) -> T:
        """Carry a conversation out; afterwards the parameters are where the role reads them. It has `reads` pulls."""
        if reads or self.role.memory != "private":
            self.replica.await_copies()  # a loaded state and a group's updates are written while a worker talks, whatever about
        try:
            with self.meter.waiting():
                said = self.link.drive(self._metered(talk if self._applier is None else self._grouped(self._applier.attend(talk))))
        except BaseException:
            self.is_broken = True
            raise
        self._pulled_bytes += reads * self.replica.parameter_bytes
        self.replica.point(self.role.memory)
        if reads:
            self.replica.copy_in()
        return said

    def may_hold(self, whole: Whole) -> None:
        """From now on the coordinator may let this worker hold all shards itself."""
        self._whole = whole
        self.role.holder = self._applier = Applier(self.role, whole)

    def leave(self) -> None:
        """The script has ended: the run goes on, or ends, without what this worker holds."""
        if not self.is_broken:
            self.converse(self.role.leave())
        if self._whole is not None:
            self._whole.close()

    def _grouped(self, talk: Generator[Any, Any, T]) -> Talk[T]:
        """The same conversation; what all of a group do together is done here."""
        try:
            wanted = next(talk)
            while True:
                if isinstance(wanted, Together):
                    assert self._whole is not None
                    wanted = talk.send(self._whole.together(wanted))
                else:
                    wanted = talk.send((yield wanted))
        except StopIteration as end:
            return end.value

    def _metered(self, talk: Talk[T]) -> Talk[T]:
        """The same conversation; the meter hears of the leave to go on."""
        try:
            wanted = next(talk)
            while True:
                delivery = yield wanted
                if isinstance(wanted, Send):
                    wanted = next(talk)
                    continue
                if isinstance(delivery.message, Start):
                    self.meter.let_go()
                wanted = talk.send(delivery)
        except StopIteration as end:
            return end.value

    def begin(self, epoch: int) -> bool:
        """Ask to compute on what is next in `epoch`; a first one of a step reads the parameters anew."""
        is_first = not self.role.started
        may_start = self.converse(self.role.begin(epoch), reads=is_first)
        if may_start and is_first:
            for call in self.at_first_batch:
                call()
        return may_start

    def pull(self) -> None:
        """The newest parameters and averaged buffers, in this worker's own memory."""
        self.converse(self.role.pull(buffers=True), reads=1)
        self.replica.load_mean_buffers()

    # --- samples ------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Count this worker's samples of an epoch from 0, and what it calls."""
        self._epoch, self._epoch_samples = epoch, 0
        self._num_calls.clear()

    def key_of(self, call: str) -> str:
        """What the workers meet by at a call. They are counted within an epoch, so that a late joiner's are those of the others."""
        number = self._num_calls[call] = self._num_calls.get(call, 0) + 1
        return f"{call} {number} " + (f"of epoch {self._epoch}" if self._epoch >= 0 else "before the first epoch")

    def give(self, samples: int) -> None:
        """The loader hands out a batch of so many samples; computing begins."""
        self._samples += samples
        self._epoch_samples += samples

    def discard(self) -> None:
        """What was handed out since the last step will not be in any gradient."""
        self._samples = 0
        if self._whole is not None:
            self._whole.abandoned()

    @property
    def weight(self) -> int:
        """The samples behind what the script logs now: of the step in hand, else of the last one."""
        return self._samples or self._last_samples

    def weight_of_step(self) -> float:
        """What the gradient in the making will weigh, 0 while nothing is computed on."""
        return float(self._samples or not self.is_counted)

    @property
    def epoch_samples(self) -> int:
        """The samples that this worker was given in the current epoch."""
        return self._epoch_samples

    # --- a step -------------------------------------------------------------------------------------------

    def written(self, first: int, past: int) -> bool:
        """A part of the gradient is written, or holds something else than before; see `Gradients.on_written`."""
        return self.link.on_written is not None and self.link.on_written(first, past)

    def step(self) -> None:
        """Push the gradient, wait as long as the pace says, go on with the parameters that came."""
        role, replica = self.role, self.replica
        if not self._may_step():
            return
        replica.check_untouched()
        gradient = replica.finish_gradient()
        if gradient.touched and not self._has_warned:
            self._has_warned = True
            say(CLIPPED_PART)
        buffer_samples = self._buffer_samples()
        if buffer_samples:
            replica.store_buffers(role.buffer)
        compute_s = self._handicapped()
        spent = self.meter.take()
        if self._whole is not None:
            self._whole.stepped()
        talk = role.step(
            Gradient(
                samples=self._samples,
                norm=gradient.norm,
                absent=gradient.absent,
                hyper=replica.hyper(),
                clip=replica.max_norm,
                buffer_samples=buffer_samples,
                compute_s=compute_s,
                wait_s=spent.wait_s,
                pulled_bytes=self._pulled_bytes,
                exchange_s=spent.exchange_s,
            )
        )
        self._last_samples, self._samples, self._pulled_bytes = self._samples, 0, 0
        start = self.converse(talk, reads=1)
        if start.refused:
            self._refused(start.refused)
        replica.flip(role.buffer, keep=role.memory != "private" or bool(start.refused))

    def _may_step(self) -> bool:
        """Whether there is something to step on; not when the run is stopping and nobody leads the script's loop."""
        if self.role.started if self.is_counted else self.role.granted:
            if not self.is_counted and not self._samples:
                self.give(1)
            return True
        if self.role.stopping and not self.is_counted:
            return False
        raise UsageError(NO_BATCH)

    def _buffer_samples(self) -> int:
        """How much the model's buffers weigh that go with this step: few steps before a lease may end, else 0."""
        is_last = not self.is_counted or len(self.role.held) <= 1
        return self._epoch_samples if is_last else 0

    def _handicapped(self) -> float:
        """Sleep as `--slow` and `--compute` say; returns the seconds of computing, sleep and all."""
        self.link.surroundings.spend(self._samples)
        spent = self.meter.spent()
        planned = self.planned_epochs * self.updates_per_epoch
        share = self.role.clock / planned if planned else 0.0
        part = self._samples / self.even_samples if self.even_samples else 1.0
        pause_s = self.handicap.pause_s(self.role.step_index, share, cpu_s=spent.cpu_s, compute_s=spent.compute_s, part=part)
        if pause_s > 0.0:
            self._sleep(pause_s)
        return spent.compute_s + pause_s

    def _refused(self, reason: str) -> None:
        if reason == "not finite":
            say(f"the gradient of step {self.role.step_index - 1} was not finite and is refused; its batch will be computed again")
