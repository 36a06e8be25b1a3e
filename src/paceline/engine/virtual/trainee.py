"""A worker without a script, for timing: it counts samples instead of computing gradients.

It goes through the epochs as a script's session does: it leases, computes for as long as its group says,
pushes as many bytes as the model has, waits as the pace says, and pulls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import NamedTuple

from paceline.engine.virtual.compute import Rhythm
from paceline.engine.virtual.job import HOST, Job
from paceline.engine.virtual.member import Member
from paceline.messages import Draw, Drawn, EpochOver, Halt, Hello, ModelSpec, TensorSpec
from paceline.ports import Delivery
from paceline.roles.effects import Send
from paceline.roles.talk import Gradient, Receive
from paceline.roles.worker import WorkerRole
from paceline.settings import Slow


class Workload(NamedTuple):
    """What a script does, as far as time goes: the samples of each batch of an epoch, and the bytes of its model.

    `owners` are of static leases and `cut` of global batches, as in `messages.Drawn`; `updates` is the sync length.
    """

    model: ModelSpec
    sizes: tuple[int, ...]
    num_epochs: int
    updates: int
    owners: tuple[int, ...] = ()
    cut: int = 0

    @property
    def planned_updates(self) -> int:
        """What the run's sample clock shows at the end."""
        return self.updates * self.num_epochs


def workload(size_bytes: int, num_batches: int, *, batch: int = 1, num_epochs: int = 1, num_workers: int = 1) -> Workload:
    """So many batches of one size an epoch, on a float32 model of `size_bytes`, trained by SGD."""
    parameter = TensorSpec("w", (max(1, size_bytes // 4),), "float32", 0)
    model = ModelSpec((parameter,), (), "torch.optim.sgd:SGD", b"", b"", True, True)
    return Workload(model, (batch,) * num_batches, num_epochs, -(-num_batches // num_workers))


class Work(NamedTuple):
    """Yielded by a trainee that computes."""

    samples: int


Course = Generator[Send | Receive | Work, Delivery | None, None]


class Trainee(Member):
    """A worker without a script. `slow` are the `--slow` of this worker.

    With `even_samples` a step takes its group's time times its part of so many samples.
    """

    def __init__(
        self, job: Job, worker: int, incarnation: int, rhythm: Rhythm, *, work: Workload, slow: tuple[Slow, ...], is_cut_short: bool
    ) -> None:
        super().__init__(job, worker, incarnation, rhythm, is_cut_short=is_cut_short)
        self._work, self._slow = work, slow
        self._role = WorkerRole(worker, incarnation, len(job.servers))
        self._inbox: deque[Delivery] = deque()
        self._is_receiving = False
        self._waited_s = self.even_samples = 0.0
        self._course: Course = self._train()  # type: ignore[assignment]

    def begin(self) -> None:
        """Join."""
        self._go_on(None)

    def stop(self) -> None:
        """It is killed."""
        super().stop()
        self._course.close()

    def arrive(self, delivery: Delivery) -> None:
        """Go on, if this is waited for; the end of the run ends it."""
        if type(delivery.message) is Halt:
            self.stop()
        elif self._is_receiving:
            self._go_on(delivery)
        else:
            self._inbox.append(delivery)

    def _go_on(self, delivery: Delivery | None) -> None:
        """Until it waits or computes."""
        post, step = self.job.post, self._course.send
        self._is_receiving = False
        try:
            while True:
                wish = step(delivery)
                delivery = None
                kind = type(wish)
                if kind is Send:
                    post(self, wish.to, wish.message)  # type: ignore[union-attr]
                elif kind is Work:
                    self.compute(wish.samples, self._computed_all, factor=self._factor(wish.samples))  # type: ignore[union-attr]
                    return
                elif self._inbox:
                    delivery = self._inbox.popleft()
                else:
                    self._is_receiving = True
                    return
        except StopIteration:
            self.alive = False

    def _computed_all(self) -> None:
        self._go_on(None)

    def _factor(self, samples: int) -> float:
        part = samples / self.even_samples if self.even_samples else 1.0
        if not self._slow:
            return part
        share = self._role.clock / self._work.planned_updates
        return part * next((slow.factor for slow in self._slow if slow.start <= share <= slow.stop), 1.0)

    # --- as a session would -------------------------------------------------------------------------------

    def _train(self) -> Generator[Send | Receive | Work, Delivery, None]:
        role, work = self._role, self._work
        welcome, _ = yield from role.join(Hello(self.id, self.incarnation, 0, f"{HOST}-{self.id}", work.model))
        if welcome.first:
            yield from role.seed(False, ())
        go = yield from role.attach(None)
        yield from role.pull()
        for epoch in range(go.epoch, work.num_epochs):
            over = yield from self._train_epoch(epoch)
            yield from role.at_end(over)
            if over.stop:
                break
        yield from role.bye()

    def _train_epoch(self, epoch: int) -> Generator[Send | Receive | Work, Delivery, EpochOver]:
        role, work = self._role, self._work
        answer, _ = yield from role.enter(epoch, ledger=True, planned=work.num_epochs)
        if isinstance(answer, Draw):
            yield from role.drawn(Drawn(epoch, work.sizes, work.owners, work.updates, work.cut), None)
        in_round = False
        while True:
            if not role.held:
                # a loader asks for more before its round is over, and only then waits
                over = yield from role.lease(epoch, wait=not in_round)
                if over is not None:
                    return over
                in_round = bool(role.held)
            elif role.granted or (yield from role.begin(epoch)):
                yield from self._step(role.held[0].position, role.held[0].cut)

    def _step(self, position: int, cut: tuple[int, int] | None) -> Generator[Send | Receive | Work, Delivery, None]:
        role, timeline = self._role, self.job.timeline
        role.take(role.held[0])
        role.unfetched.clear()
        samples = cut[1] - cut[0] if cut is not None else self._work.sizes[position]
        begun_s = timeline.now_s
        yield Work(samples)
        compute_s = timeline.now_s - begun_s
        wait_s, self._waited_s = self._waited_s, 0.0
        done_s = timeline.now_s
        yield from role.step(Gradient(samples, 1.0, compute_s=compute_s, wait_s=wait_s, pulled_bytes=self.job.model_bytes))
        self._waited_s = timeline.now_s - done_s
