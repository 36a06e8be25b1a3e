"""The coordinator's part that leases the samples of an epoch: who is given what, what comes back, who waits in line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from paceline.logic.ledger import Ledger
from paceline.logic.membership import COMPUTING, Worker
from paceline.messages import EpochOver, Grant
from paceline.roles.job import Job

FIRST_GRANT_WAIT_S = 1.0
"""How long, in distinct paces, an epoch's first leases wait for as many members to ask as an update takes, so that it is whole."""
EVALUATION_PATIENCES = 10
"""How many patiences a worker outside its steps may take (an evaluation) while others wait for it."""
FAILURES_ALLOWED = 3
"""A batch that was in so many gradients that were not finite is skipped."""


class Leases:
    """The leases of one epoch: `ledger` is None when nobody counts its samples.

    `line` are the members that wait for what comes back. `grants_by_s` is when the first leases are given at the latest.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._parts: dict[int, float] = {}
        self.reset(0)

    def reset(self, epoch: int) -> None:
        """Nothing of `epoch` can be leased yet."""
        self.epoch = epoch
        self.ledger: Ledger | None = None
        self.line: dict[int, Worker] = {}
        self.grants_by_s: float | None = None
        self._granting = False
        self._first: dict[int, bool] = {}
        self._failures: dict[int, int] = {}

    def open(self, ledger: Ledger) -> None:
        """The epoch's batch list is there."""
        self.ledger = ledger
        ledger.set_parts(self._parts)
        for owner in ledger.owners - self.job.members.workers.keys():
            ledger.disown(owner)
        if self.job.pace.distinct:
            waits_for_all = self.job.is_together and self.job.pace.is_collective
            wait_s = EVALUATION_PATIENCES * self.job.settings.patience_s if waits_for_all else FIRST_GRANT_WAIT_S
            self.grants_by_s = self.job.now_s + wait_s
        else:
            self._granting = True
            self._enter(self.job.members.attached())
        for worker in self.job.members.attached():
            self.recount(worker)
        if self.job.stopping:
            self.close()

    def set_parts(self, parts: Mapping[int, float]) -> bool:
        """From now on batches are cut in proportion to `parts` of the workers, in later epochs too; one without gets the mean.

        Returns whether that changes anything in this epoch: not where batches are never cut.
        """
        self._parts = dict(parts)
        if self.ledger is None or not self.ledger.is_cut:
            return False
        self.ledger.set_parts(parts)
        return True

    # --- giving -------------------------------------------------------------------------------------------

    def ask(self, worker: Worker, *, wait: bool) -> None:
        """A worker asks for entries; an answer may have to wait."""
        if self._granting or self.ledger is None or worker.left_epoch:
            self._grant(worker, wait=wait)
        else:
            self._first[worker.id] = wait
            self.grant_first()

    def grant_first(self) -> None:
        """The epoch's first leases: when all members have asked whom an update takes, or their time is over."""
        if self.grants_by_s is None:
            return
        members, quorum = self.job.members, self.job.pace.quorum
        if len(self._first) < min(members.num_attached, quorum.of(members.num_attached)) and self.job.now_s < self.grants_by_s:
            return
        self._granting, self.grants_by_s = True, None
        if self.job.gauges is not None:
            self.job.gauges.resumed(self.job.now_s)
        first, self._first = self._first, {}
        # where all must be in an update those who have not asked are in none, elsewhere they only come later
        self._enter([members.workers[number] for number in first] if quorum.rule == "all" else members.attached())
        for number in sorted(first):
            self._grant(members.workers[number], wait=first[number])

    def _enter(self, workers: Iterable[Worker]) -> None:
        """These take part in what is cut from now on."""
        if self.ledger is not None:
            self.ledger.enter(*[worker.id for worker in workers if not worker.left_epoch])

    def _grant(self, worker: Worker, *, wait: bool) -> None:
        self._enter((worker,))
        leased = self._top_up(worker, idle=wait)
        if not leased and wait and self._recall_for(worker):
            leased = self._top_up(worker)
        if leased or not wait:
            self.job.tell(worker, Grant(self.epoch, leased, self.cuts(leased), self.take_recalled(worker)))
            self.recount(worker)
        else:
            self.line[worker.id] = worker

    def take_next(self, worker: Worker) -> tuple[bool, tuple[int, ...]]:
        """Start `worker` on its next entry, leasing more when it holds none: whether there was one, and what is new."""
        ledger = self.ledger
        if ledger is None or worker.left_epoch:
            worker.is_open = worker.is_open and not self.job.stopping
            return worker.is_open, ()
        leased: tuple[int, ...] = ()
        if not ledger.held.get(worker.id):
            leased = self._top_up(worker)
            if not leased:
                return False, ()
        worker.started.append(ledger.start(worker.id))
        return True, leased

    def _top_up(self, worker: Worker, *, idle: bool = False) -> tuple[int, ...]:
        """Lease a few free entries to `worker`, none when it has left the epoch.

        What is cut for others is left to them by one that is not `idle` when all go in step: each update has a piece of each.
        """
        job, ledger = self.job, self.ledger
        greedy = idle or job.pace.quorum.rule != "all"
        if ledger is None or worker.left_epoch or not self._granting or not ledger.has_for(worker.id, greedy=greedy):
            return ()
        leased = tuple(ledger.lease(worker.id, ledger.share(len(job.members.workers)), greedy=greedy))
        if leased:
            job.accounts.begin(job.now_s)
            job.note("lease", worker=worker.id, positions=leased)
        return leased

    def cuts(self, positions: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """The sample ranges of cut entries."""
        ledger = self.ledger
        if ledger is None or not ledger.cuts:
            return ()
        return tuple([ledger.cuts[position] for position in positions])

    def take_recalled(self, worker: Worker) -> tuple[int, ...]:
        """What was taken back from `worker` since it was last told."""
        recalled = tuple(worker.recalled)
        worker.recalled.clear()
        return recalled

    def recount(self, worker: Worker) -> None:
        """Bring the member's holdings up to date with the ledger."""
        unstarted = self.ledger is not None and not worker.left_epoch and self.ledger.holds(worker.id)
        self.job.members.recount(worker, unstarted=unstarted)

    # --- coming back --------------------------------------------------------------------------------------

    def _recall_for(self, worker: Worker) -> bool:
        """Call unstarted entries back from the member that holds the most; static shares stay."""
        ledger = self.ledger
        if ledger is None or ledger.is_static or worker.left_epoch:
            return False
        if not any(ledger.held.values()):
            return False  # as for most of those who ask at the end of an epoch, each of whom would look at all others
        spare = {
            other.id: len(ledger.held.get(other.id, ())) - (other.phase is not COMPUTING)
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

    def refused(self, positions: Sequence[int], *, not_finite: bool) -> None:
        """The batches of a refused gradient go to the front, unchanged; those that failed too often are skipped."""
        ledger = self.ledger
        if ledger is None:
            return
        if not_finite:
            for position in positions:
                self._failures[position] = self._failures.get(position, 0) + 1
            bad = [position for position in positions if self._failures[position] >= FAILURES_ALLOWED]
            if bad:
                names = ", ".join(map(str, bad))
                self.job.warn(f"batch(es) {names} of epoch {self.epoch} gave {FAILURES_ALLOWED} gradients that were not finite: skipped")
                ledger.skip(bad)
                if self.job.kept is not None:
                    self.job.kept.enter(self.epoch)
                    self.job.kept.skipped += bad
                positions = [position for position in positions if position not in bad]
        ledger.give_back(positions)
        self._pass_on()

    def undo(self, folded: Sequence[int], skipped: Sequence[int] = ()) -> None:
        """Batches of this epoch whose updates were taken back go to the front, unchanged.

        So do those `skipped` for their numbers meanwhile: the failures may have been those of the parameters.
        """
        if self.ledger is not None:
            self._failures.clear()
            self.ledger.unskip(skipped)
            self.ledger.undo(folded)
            for worker in self.job.members.attached():
                self.recount(worker)
            self._pass_on()

    def release(self, worker: Worker, *, consumed: bool = False) -> None:
        """A worker leaves the epoch or the job: what it holds goes back, what it used up without a step is skipped."""
        self._first.pop(worker.id, None)
        self.line.pop(worker.id, None)
        ledger = self.ledger
        if ledger is None:
            return
        ledger.release(worker.id)
        if consumed and worker.started:
            names = ", ".join(map(str, worker.started))
            skipped = f"batch(es) {names} were computed without a step and are skipped"
            self.job.warn(f"worker {worker.id} ended epoch {self.epoch} in mid-accumulation: {skipped}")
            ledger.skip(worker.started)
        else:
            ledger.give_back(worker.started)
        ledger.disown(worker.id)

    def released(self) -> None:
        """What a worker gave back is open to the others."""
        self.grant_first()
        self._pass_on()

    def _pass_on(self) -> None:
        """Entries may have come back: lease them to those who wait, or give them up when the run is stopping."""
        ledger = self.ledger
        if ledger is None:
            return
        if self.job.stopping:
            self.close()
            return
        for number in [number for number in self.line if ledger.has_for(number, greedy=True)]:
            if ledger.has_for(number, greedy=True):
                self._grant(self.line.pop(number), wait=True)

    def close(self) -> None:
        """Nothing is leased any more; what is computed on is still folded."""
        if self.ledger is None:
            return
        taken = self.ledger.close()
        for worker in self.job.members.workers.values():
            worker.recalled += taken.get(worker.id, ())
            self.recount(worker)

    def dismiss(self, over: EpochOver) -> None:
        """The epoch is over for all that wait."""
        for worker in self.line.values():
            self.job.tell(worker, over)
        for number, wait in self._first.items():
            self.job.tell(self.job.members.workers[number], over if wait else Grant(self.epoch, ()))
        self.line.clear()
        self._first.clear()
        self.grants_by_s = None
