"""The coordinator's part that runs epochs: who draws the batch list, who is leased what, when an epoch is over.

An epoch is over when every sample is folded (or given up), and the next one begins when every member holds the
version of that end. Workers that ask while nothing is free wait in line for what comes back.
"""

from __future__ import annotations

from enum import Enum

from paceline.logic.ledger import Ledger, Place
from paceline.logic.membership import Phase, Worker
from paceline.messages import AtEnd, Draw, Drawn, Enter, EpochOver, GiveBack, Grant, LeaseRequest, Plan
from paceline.roles.job import Job

FIRST_GRANT_WAIT_S = 1.0
"""How long, in distinct paces, an epoch's first leases wait for every member to ask, so that updates are whole."""


class Stage(Enum):
    """Where the current epoch is."""

    NEW = "nobody has entered"
    DRAWING = "its batch list is being drawn"
    OPEN = "running"
    OVER = "over"


class Epochs:
    """The current epoch: `index`, `stage`, `ledger` (None when nobody counts its samples)."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.index = 0
        self.clock_base = 0
        self._open_new()

    def _open_new(self) -> None:
        self.stage = Stage.NEW
        self.ledger: Ledger | None = None
        self.updates = self.repeated = self.folded = self.per_update = 0
        self.end_version = 0
        self.granting = self._any_left = False
        self.grants_by_s: float | None = None
        self._drawer = -1
        self._plan_queue: list[Worker] = []
        self._next_queue: list[Worker] = []
        self._first: dict[int, bool] = {}
        self.line: dict[int, Worker] = {}
        self._ended: set[int] = set()

    @property
    def clock(self) -> int:
        """The run's sample clock, in sync updates: whole epochs, and what of this one is folded, rounded up."""
        if not self.per_update:
            return self.clock_base
        done = -(-self.folded // self.per_update)
        return self.clock_base + (min(done, self.updates) if self.updates else done)

    # --- entering -----------------------------------------------------------------------------------------

    def enter(self, worker: Worker, message: Enter) -> None:
        """A worker's loader begins an epoch: this one, or the next when this one is over."""
        worker.ledgered, worker.epoch = message.ledger, message.epoch
        if message.epoch == self.index + 1:
            self._next_queue.append(worker)
            return
        if message.epoch != self.index:
            self.job.end(1, f"worker {worker.id} begins epoch {message.epoch} while the run is in epoch {self.index}; all workers must run the same loops")
            return
        worker.left_epoch = False
        if not message.ledger:
            self._enter_uncounted(worker)
        elif self.stage is Stage.NEW:
            self.stage, self._drawer = Stage.DRAWING, worker.id
            self.job.tell(worker, Draw(self.index, self.job.settings.num_workers))
        elif self.stage is Stage.DRAWING:
            self._plan_queue.append(worker)
        elif self.ledger is None:
            self.job.end(1, f"worker {worker.id} has a loader whose samples are counted, the others have not")
        else:
            self.job.tell(worker, Plan(self.index, self.updates))

    def _enter_uncounted(self, worker: Worker) -> None:
        if self.ledger is not None or self.stage is Stage.DRAWING:
            self.job.end(1, f"worker {worker.id} has a loader whose samples are not counted, the others have")
            return
        if self.stage is Stage.NEW:
            self.stage = Stage.OPEN
        self.job.tell(worker, Plan(self.index, 0))

    def drawn(self, worker: Worker, message: Drawn, now_s: float) -> None:
        """The batch list is there: the epoch is open."""
        if self.stage is not Stage.DRAWING or worker.id != self._drawer or message.epoch != self.index:
            return
        if not sum(message.sizes):
            self.job.end(1, "the loader has no samples: nothing can be trained")
            return
        self.ledger = Ledger(message.sizes, owners=message.owners, cut=message.cut)
        for owner in set(message.owners) - self.job.members.workers.keys():
            self.ledger.disown(owner)
        self.stage, self.updates, self.repeated = Stage.OPEN, message.updates, message.repeated
        most = message.cut or max(message.sizes) * self.job.settings.num_workers
        even = (message.updates - 1) * most < self.ledger.num_samples
        self.per_update = most if even else -(-self.ledger.num_samples // max(1, message.updates))
        if self.job.pace.distinct:
            self.grants_by_s = now_s + FIRST_GRANT_WAIT_S
        else:
            self.granting = True
        for other in (worker, *self._plan_queue):
            self.job.tell(other, Plan(self.index, self.updates))
        self._plan_queue.clear()
        for other in self.job.members.attached():
            self.recount(other)

    # --- leasing ------------------------------------------------------------------------------------------

    def lease(self, worker: Worker, message: LeaseRequest, now_s: float) -> None:
        """A worker asks for entries; an answer may have to wait."""
        if self.stage is Stage.OVER:
            self.job.tell(worker, self._over() if message.wait else Grant(self.index, ()))
        elif self.granting or self.ledger is None or worker.left_epoch:
            self._grant(worker, message.wait)
        else:
            self._first[worker.id] = message.wait
            self.grant_first(now_s)
        self.check_over()

    def grant_first(self, now_s: float) -> None:
        """The epoch's first leases: when all members have asked, or their time is over."""
        if self.grants_by_s is None:
            return
        all_there = all(worker.id in self._first for worker in self.job.members.attached())
        if not all_there and now_s < self.grants_by_s:
            return
        self.granting, self.grants_by_s = True, None
        for number in sorted(self._first):
            self._grant(self.job.members.workers[number], self._first[number])
        self._first.clear()

    def _grant(self, worker: Worker, wait: bool) -> None:
        leased = self.top_up(worker)
        if not leased and wait and self._recall_for(worker):
            leased = self.top_up(worker)
        if leased or not wait:
            self.job.tell(worker, Grant(self.index, leased, self.cuts(leased), self.take_recalled(worker)))
            self.recount(worker)
        else:
            self.line[worker.id] = worker

    def top_up(self, worker: Worker) -> tuple[int, ...]:
        """Lease a few free entries to `worker`, none when it has left the epoch or the run is stopping."""
        ledger = self.ledger
        if ledger is None or worker.left_epoch or not self.granting or not ledger.has_for(worker.id):
            return ()
        num_workers = max(1, len(self.job.members.workers))
        leased = tuple(ledger.lease(worker.id, ledger.share(num_workers), num_workers))
        self.job.note("lease", worker=worker.id, positions=leased)
        return leased

    def cuts(self, positions: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """The sample ranges of cut entries."""
        ledger = self.ledger
        if ledger is None or not ledger.cuts:
            return ()
        return tuple(ledger.cuts[position] for position in positions)

    def take_recalled(self, worker: Worker) -> tuple[int, ...]:
        """What was taken back from `worker` since it was last told."""
        if not worker.recalled:
            return ()
        recalled = tuple(worker.recalled)
        worker.recalled.clear()
        return recalled

    def _recall_for(self, worker: Worker) -> bool:
        """Call unstarted entries back from the member that holds the most; static shares stay."""
        ledger = self.ledger
        if ledger is None or ledger.is_static or worker.left_epoch:
            return False
        spare = {
            other.id: len(ledger.held.get(other.id, ())) - (other.phase is not Phase.COMPUTING)
            for other in self.job.members.workers.values()
            if other.id != worker.id
        }
        victim = max(spare, key=lambda number: (spare[number], number), default=None)
        if victim is None or spare[victim] <= 0:
            return False
        other = self.job.members.workers[victim]
        other.recalled += ledger.recall(victim, (spare[victim] + 1) // 2)
        self.recount(other)
        return True

    def serve_line(self) -> None:
        """Entries may have come back: lease them to those who wait."""
        ledger = self.ledger
        for number in list(self.line):
            if ledger is None or not ledger.has_for(number):
                continue
            self._grant(self.line.pop(number), wait=True)

    def recount(self, worker: Worker) -> None:
        """Bring the member's holdings up to date with the ledger."""
        unstarted = self.ledger is not None and not worker.left_epoch and self.ledger.holds(worker.id)
        self.job.members.recount(worker, unstarted=unstarted)

    # --- coming back and ending ---------------------------------------------------------------------------

    def give_back(self, worker: Worker, message: GiveBack) -> None:
        """A worker has left its loop: what it holds goes back, what it used up without a step is skipped."""
        worker.left_epoch, worker.is_open = True, False
        self._any_left = True
        if self.ledger is not None:
            if message.consumed and worker.started:
                names = ", ".join(map(str, worker.started))
                self.job.warn(f"worker {worker.id} ended epoch {self.index} in mid-accumulation: batch(es) {names} were computed without a step and are skipped")
                self.ledger.skip(worker.started)
            else:
                self.ledger.give_back(worker.started)
            self.ledger.release(worker.id)
            self.ledger.disown(worker.id)
        worker.started.clear()
        worker.recalled.clear()
        self.job.members.move(worker, Phase.RESTING)
        self.job.progress.rest(worker.id)
        self.recount(worker)
        self.serve_line()
        self.check_over()

    def returned(self, positions: tuple[int, ...]) -> None:
        """The batches of a refused gradient: to the front, unchanged."""
        if self.ledger is not None:
            self.ledger.give_back(positions)
            if self.job.stopping:
                self.stop()
            else:
                self.serve_line()

    def left(self, worker: Worker, now_s: float) -> None:
        """A member is gone: its leases go to the others."""
        for queue in (self._plan_queue, self._next_queue):
            if worker in queue:
                queue.remove(worker)
        self._first.pop(worker.id, None)
        self.line.pop(worker.id, None)
        self._ended.discard(worker.id)
        if self.ledger is not None:
            self.ledger.give_back(worker.started)
            self.ledger.release(worker.id)
            self.ledger.disown(worker.id)
        if self.stage is Stage.DRAWING and worker.id == self._drawer:
            self.stage = Stage.NEW
            queue, self._plan_queue = self._plan_queue, []
            for other in queue:
                self.enter(other, Enter(self.index))
        self.grant_first(now_s)
        self.serve_line()
        if self.job.stopping:
            self.stop()
        self.check_over()
        self._advance()

    def stop(self) -> None:
        """An early end: nothing is leased any more, what is computed on is still folded."""
        if self.ledger is not None and self.stage is Stage.OPEN:
            for number, positions in self.ledger.close().items():
                if (other := self.job.members.workers.get(number)) is not None:
                    other.recalled += positions
                    self.recount(other)
            self.check_over()

    def check_over(self) -> None:
        """End the epoch when nothing of it is left to fold."""
        if self.stage is not Stage.OPEN or self.job.pending:
            return
        if self.ledger is None or not self.ledger.done:
            members = self.job.members.attached() if self._any_left else []
            if not members or not all(worker.left_epoch for worker in members):
                return
            if self.ledger is not None:
                self.ledger.close()
        self.stage, self.end_version = Stage.OVER, self.job.version
        self.settle()
        self.clock_base += self.updates or (self.clock - self.clock_base)
        self.folded = self.per_update = 0
        for worker in self.line.values():
            self.job.tell(worker, self._over())
        self.line.clear()

    def settle(self) -> None:
        """Book what became of the epoch's samples."""
        if self.ledger is None:
            self.job.accounts.settle(folded=self.folded, repeated=0, skipped=0)
        else:
            samples = self.ledger.samples
            left = self.ledger.num_samples - sum(samples.values())
            self.job.accounts.settle(folded=samples[Place.FOLDED], repeated=self.repeated, skipped=samples[Place.SKIPPED] + left)

    def _over(self) -> EpochOver:
        return EpochOver(self.index, self.end_version, bool(self.job.stopping))

    def at_end(self, worker: Worker, message: AtEnd) -> None:
        """A worker holds the version of the epoch's end."""
        if message.epoch == self.index:
            self._ended.add(worker.id)
            self._advance()

    def _advance(self) -> None:
        if self.stage is not Stage.OVER or not all(worker.id in self._ended for worker in self.job.members.attached()):
            return
        queue = self._next_queue
        self.index += 1
        self._open_new()
        for worker in self.job.members.workers.values():
            worker.left_epoch = False
        for worker in queue:
            self.enter(worker, Enter(self.index, worker.ledgered))

    def joined(self, worker: Worker) -> int:
        """A member was added; returns the epoch that it begins with."""
        worker.first_epoch = self.index
        if self.stage is Stage.OVER:
            self._ended.add(worker.id)
            worker.first_epoch += 1
        return worker.first_epoch

    def not_ended(self) -> list[int]:
        """The members that others wait for between two epochs."""
        if self.stage is not Stage.OVER or not self._next_queue:
            return []
        return [worker.id for worker in self.job.members.attached() if worker.id not in self._ended]
