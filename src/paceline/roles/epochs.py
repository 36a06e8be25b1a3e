"""The coordinator's part that runs epochs: who draws the batch list, when an epoch is over, when the next begins.

An epoch is over when every sample is folded (or given up), and the next one begins when every member holds the
version of that end.
"""

from __future__ import annotations

from enum import Enum

from paceline.logic.ledger import Ledger
from paceline.logic.membership import RESTING, Worker
from paceline.messages import AtEnd, Draw, Drawn, Enter, EpochOver, GiveBack, Grant, LeaseRequest, Plan
from paceline.roles.job import Job, Since
from paceline.roles.leases import Leases


class Stage(Enum):
    """Where the current epoch is."""

    NEW = "nobody has entered"
    DRAWING = "its batch list is being drawn"
    OPEN = "running"
    OVER = "over"


class Epochs:
    """The current epoch: `index`, `stage`, its `leases`, the samples `folded` of it.

    `planned` is how many epochs there are to be, 0 while nobody said; `again` of their samples are folded twice. `first` is
    the worker that does what only one should do, until the epoch's end. `clock` is the run's sample clock, in sync updates:
    whole epochs, and what of this one is folded, rounded up.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.leases = Leases(job)
        self.index = self.clock = self.planned = self.again = self.first = 0
        self._open_new()

    def _open_new(self) -> None:
        self.stage = Stage.NEW
        self.drawer = -1
        self.folded = 0
        self.leases.reset(self.index)
        self._clock_base = self.clock
        self._updates = self._repeated = self._per_update = 0
        self._num_left = 0
        self._is_booked = False
        self._over: EpochOver | None = None
        self._plan_queue: list[Worker] = []
        self._next_queue: list[Worker] = []
        self._ended: set[int] = set()

    @property
    def num_samples(self) -> int:
        """Samples of the epoch, 0 when nobody counts them."""
        return 0 if self.leases.ledger is None else self.leases.ledger.num_samples

    def planned_samples(self) -> int | None:
        """How many samples the run will fold in all, what a Restore made undone counted twice; None while that is not known."""
        ledger = self.leases.ledger
        return self.planned * ledger.num_samples + self.again if ledger is not None and self.planned else None

    # --- entering -----------------------------------------------------------------------------------------

    def enter(self, worker: Worker, message: Enter) -> None:
        """A worker's loader begins an epoch: this one, or the next when this one is over."""
        worker.ledgered, worker.epoch = message.ledger, message.epoch
        self.planned = max(self.planned, message.planned)
        if message.epoch == self.index + 1:
            self._next_queue.append(worker)
            return
        if message.epoch != self.index:
            where = f"epoch {message.epoch} while the run is in epoch {self.index}"
            self.job.end(1, f"worker {worker.id} begins {where}; all workers must run the same loops")
            return
        self._leave(worker, left=False)
        if not message.ledger:
            self._enter_uncounted(worker)
        elif self.stage is Stage.NEW:
            self.stage, self.drawer = Stage.DRAWING, worker.id
            worker.since_s = self.job.now_s
            self.job.tell(worker, Draw(self.index, self.job.settings.num_workers))
        elif self.stage is Stage.DRAWING:
            self._plan_queue.append(worker)
        elif self.leases.ledger is None:
            self.job.end(
                1, f"the samples of worker {worker.id}'s loader are counted, those of the others' are not; all must prepare the same kind"
            )
        else:
            self.job.tell(worker, Plan(self.index, self._updates))

    def _enter_uncounted(self, worker: Worker) -> None:
        if self.leases.ledger is not None or self.stage is Stage.DRAWING:
            self.job.end(
                1, f"the samples of worker {worker.id}'s loader are not counted, those of the others' are; all must prepare the same kind"
            )
            return
        if self.stage is Stage.NEW:
            self._begin()
            self.job.accounts.begin(self.job.now_s)
        self.job.tell(worker, Plan(self.index, 0))

    def drawn(self, worker: Worker, message: Drawn) -> None:
        """The batch list is there: the epoch is open."""
        if self.stage is not Stage.DRAWING or worker.id != self.drawer or message.epoch != self.index:
            return
        num_samples = sum(message.sizes)
        if not num_samples:
            self.job.end(1, "the loader has no samples: nothing can be trained")
            return
        self._begin()
        self._updates, self._repeated = message.updates, message.repeated
        most = message.cut or max(message.sizes) * self.job.settings.num_workers
        even = (message.updates - 1) * most < num_samples
        self._per_update = most if even else -(-num_samples // max(1, message.updates))
        self.leases.open(Ledger(message.sizes, owners=message.owners, cut=message.cut))
        for other in (worker, *self._plan_queue):
            self.job.tell(other, Plan(self.index, self._updates))
        self._plan_queue.clear()

    def _begin(self) -> None:
        """There is work again."""
        self.stage = Stage.OPEN
        if self.job.gauges is not None:
            self.job.gauges.resumed(self.job.now_s)

    def lease(self, worker: Worker, message: LeaseRequest) -> None:
        """A worker asks for entries; with `wait` it is told when there are none any more."""
        if self._over is None:
            self.leases.ask(worker, wait=message.wait)
        else:
            self.job.tell(worker, self._over if message.wait else Grant(self.index, ()))

    @property
    def is_uncounted(self) -> bool:
        """Whether an epoch is open whose samples nobody counts."""
        return self.stage is Stage.OPEN and self.leases.ledger is None

    def is_amid(self, worker: Worker) -> bool:
        """Whether the worker is in the middle of an epoch whose samples are counted: it has not left its loop, and nobody stops the run."""
        is_in = worker.epoch == self.index and not worker.left_epoch
        return is_in and self.stage is Stage.OPEN and not self.is_uncounted and not self.job.stopping

    def warn_if_amid(self, worker: Worker) -> None:
        """Tell of a script that ends before its epoch does."""
        if self.is_amid(worker):
            self.job.warn(f"worker {worker.id}'s script ended in the middle of epoch {self.index}; its samples go to the others")

    def folded_more(self, num_samples: int, per_worker: int) -> None:
        """An update was made of `num_samples`; `per_worker` is what one gradient has, where nobody has counted."""
        self.folded += num_samples
        if not self._per_update:
            self._per_update = per_worker * self.job.settings.num_workers
        done = -(-self.folded // self._per_update)
        self.clock = self._clock_base + (min(done, self._updates) if self._updates else done)

    # --- taking back --------------------------------------------------------------------------------------

    def undo(self, since: Since) -> int:
        """What was folded is undone; what is of this epoch, which is open, is leased again. Returns the samples."""
        since.enter(self.index)
        undone = since.samples + since.earlier
        self.again += since.samples
        self.job.accounts.undo(undone, booked=0 if self.leases.ledger is None else since.earlier)
        self.leases.undo(since.positions, since.skipped)
        return undone

    # --- ending -------------------------------------------------------------------------------------------

    def give_back(self, worker: Worker, message: GiveBack) -> None:
        """A worker has left its loop."""
        self._leave(worker, left=True)
        worker.is_open = False
        self.leases.release(worker, consumed=message.consumed)
        worker.started.clear()
        worker.recalled.clear()
        self.job.members.move(worker, RESTING)
        self.job.progress.rest(worker.id)
        self.leases.recount(worker)
        self.leases.released()

    def left(self, worker: Worker) -> None:
        """A member is gone: its leases go to the others."""
        for queue in (self._plan_queue, self._next_queue):
            if worker in queue:
                queue.remove(worker)
        self._ended.discard(worker.id)
        self._leave(worker, left=False)
        self.leases.release(worker)
        if self.stage is Stage.DRAWING and worker.id == self.drawer:
            self.stage = Stage.NEW
            queue, self._plan_queue = self._plan_queue, []
            for other in queue:
                self.enter(other, Enter(self.index))
        self.leases.released()
        self._advance()

    def check_over(self) -> None:
        """End the epoch when nothing of it is left to fold."""
        ledger = self.leases.ledger
        if self.stage is not Stage.OPEN or self.job.pending:
            return
        if ledger is None or not ledger.done:
            num_members = self.job.members.num_attached
            if not num_members or self._num_left < num_members:
                return
            if ledger is not None:
                ledger.close()
        self.stage = Stage.OVER
        self.first = min((worker.id for worker in self.job.members.attached()), default=self.first)
        self._over = EpochOver(self.index, self.job.version, bool(self.job.stopping), self.first)
        self.book()
        self.clock = max(self.clock, self._clock_base + self._updates)
        self.leases.dismiss(self._over)

    def _leave(self, worker: Worker, *, left: bool) -> None:
        """Count who has left its loop: a job may have thousands, and asks at every step whether all have."""
        self._num_left += left - worker.left_epoch
        worker.left_epoch = left

    def book(self) -> None:
        """Book what became of the epoch's samples, once; of one that is cut short, the rest is skipped."""
        if self._is_booked or self.stage in (Stage.NEW, Stage.DRAWING):
            return
        self._is_booked = True
        ledger = self.leases.ledger
        if ledger is None:
            self.job.accounts.uncounted += self.folded
        elif ledger.folded or not self.job.stopping:
            # one that some had entered when the run was stopped before it is no epoch of the run
            self.job.accounts.settle(folded=ledger.folded, repeated=self._repeated, skipped=ledger.num_samples - ledger.folded)

    def at_end(self, worker: Worker, message: AtEnd) -> None:
        """A worker holds the version of the epoch's end."""
        if message.epoch == self.index:
            self._ended.add(worker.id)
            self._advance()

    def _advance(self) -> None:
        """Begin the next epoch when every member has ended this one."""
        members = self.job.members
        if self.stage is not Stage.OVER or len(self._ended) < members.num_attached:
            return
        queue = self._next_queue
        self.index += 1
        for worker in members.workers.values():
            self._leave(worker, left=False)
        self._open_new()
        for worker in queue:
            self.enter(worker, Enter(self.index, worker.ledgered))

    def joined(self, worker: Worker) -> int:
        """A member was added; returns the epoch that it begins with."""
        worker.first_epoch = self.index
        if self.stage is Stage.OVER:
            self._ended.add(worker.id)
            worker.first_epoch += 1
        return worker.first_epoch

    def not_ended(self) -> set[int]:
        """The members that others wait for between two epochs."""
        if self.stage is not Stage.OVER or not self._next_queue:
            return set()
        return {worker.id for worker in self.job.members.attached() if worker.id not in self._ended}
