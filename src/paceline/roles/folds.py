"""The coordinator's part that makes updates: what is pending, when it is folded, what goes into the order.

Nothing here decides who may start. A clipped or bounded update is ordered at once and its factor follows when every
server has told its part of the norm.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.logic.fold import Pending, Weighed, absent_in_all, gathered_member, needs_factor, weigh
from paceline.logic.gate import fold_due
from paceline.logic.gauges import Gauges
from paceline.logic.membership import RESTING, WAITING, Worker
from paceline.logic.weighting import lr_factor, lr_rule_of, weight_of
from paceline.messages import Accept, Address, Factor, Fold, Gone, PartNorm, Ready
from paceline.roles.epochs import Epochs
from paceline.roles.job import Job, Update

MEASURE_EVERY, FIRST_EVERY = 10, 3
"""Servers measure the norms of one update in so many for the gauges, and of more that can tell the noise while it is not known."""
CLIP_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


class Norm:
    """The parts that have come of an update's squared norm and of how far the parameters moved since its members read them.

    `bound` is the strength of a `bound` correction, None without one. `owed_by` are those whose report is to come.
    """

    def __init__(self, clip: float, bound: float | None, since_s: float, owed_by: Iterable[Address] = ()) -> None:
        self.clip, self.bound, self.since_s, self.owed_by = clip, bound, since_s, set(owed_by)
        self.square, self.moved = 0.0, 0.0

    def factors(self) -> tuple[float, float]:
        """What clipping multiplies the gradient by, and what the bound does the step (Dutta et al. 2018)."""
        clipped = min(1.0, self.clip / (self.square**0.5 + CLIP_EPSILON)) if self.clip else 1.0
        return clipped, 1.0 if self.bound is None or self.moved <= self.bound else self.bound / self.moved


class Folds:
    """`norms` are the updates that wait for their factor, `grace_until_s` ends the wait for more members."""

    def __init__(self, job: Job, epochs: Epochs) -> None:
        self.job, self.epochs = job, epochs
        self.norms: dict[int, Norm] = {}
        self.grace_until_s: float | None = None
        self._sent_hyper = b""
        self._lr_factor = 1.0
        self._lr_factor_for = (0, 0)

    def accept(self, worker: Worker, ready: Ready, base: int) -> bool:
        """The gradient is pending; returns whether an update is due. If not, servers gather it where that is possible."""
        job, ledger = self.job, self.epochs.leases.ledger
        worker.not_finite = worker.stale = 0
        worker.num_pending += 1
        worker.started.clear()
        if ledger is not None:
            ledger.pend(ready.positions)
        pending = Pending(
            worker.id,
            worker.incarnation,
            ready.step,
            ready.buffer,
            ready.samples,
            base,
            ready.positions,
            ready.absent,
            worker.hyper,
            ready.clip,
            ready.buffer_samples,
            worker,
            ready.norm,
        )
        job.pending.append(pending)
        due = self.due()
        if not due and not job.pace.distinct:
            # nothing is folded before this one, so its staleness is final
            pending.omega = weight_of(job.pace, job.version - base, num_live=job.members.crowd.live)
            job.order(Accept(gathered_member(pending, job.version - base)))
        return due

    def due(self) -> bool:
        """Whether what is pending is folded now: by the gate, and when the grace is over or nobody is left to wait for."""
        job = self.job
        if not self.is_open:
            return False
        pace, crowd, num_pending = job.pace, job.members.crowd, len(job.pending)
        if not fold_due(pace, num_pending, crowd).ok:
            self.grace_until_s = None
            return False
        if pace.grace_s and crowd.computing and (num_pending < crowd.holders or not pace.distinct):
            if self.grace_until_s is None:
                self.grace_until_s = job.now_s + pace.grace_s
            return job.now_s >= self.grace_until_s
        return True

    @property
    def is_open(self) -> bool:
        """Whether updates can be made: the shards are at one place, and none is being summed."""
        return not self.job.is_moving and self.job.vote is None

    @property
    def may_make(self) -> bool:
        """Whether an update may be made before it is due: nobody computes on the shards' own memory."""
        return self.is_open and not self.job.members.crowd.in_place

    def make(self) -> list[Pending]:
        """Order the update of everything that is pending; returns its members, none yet when a group votes on it."""
        job, update = self.job, self._next()
        fold, correction = update.fold, job.pace.correction
        job.order(fold)
        if needs_factor(fold, correction):
            bound = correction.strength if correction.rule == "bound" else None
            self.norms[fold.version] = Norm(fold.clip, bound, job.now_s, job.appliers)
        if fold.votes:
            job.vote = update
            return []
        return self._made(update)

    def _next(self) -> Update:
        """The update of everything that is pending."""
        job, pending = self.job, self.job.pending
        assert job.model is not None
        version = job.version + 1
        num_live, scales_gradients = job.members.crowd.live, job.model.scales_gradients
        weighed = weigh(
            job.pace, pending, version=version, num_live=num_live, scales_gradients=scales_gradients, is_scaled=len(job.group) > 1
        )
        lowest = min(pending) if len(pending) > 1 else pending[0]
        hyper = lowest.hyper if lowest.hyper != self._sent_hyper else b""
        absent = absent_in_all([one.absent for one in pending]) if lowest.absent else b""
        told = None if job.gauges is None else self._measured(job.gauges, weighed, version, lowest.clip)
        rate, votes = weighed.lr_factor * self._factor(), bool(job.group)
        fold = Fold(version, weighed.members, weighed.scale, rate, hyper, absent, lowest.clip, told is not None, votes)
        return Update(fold, weighed, hyper, told)

    def _made(self, update: Update) -> list[Pending]:
        """The update is one of the run's: book it."""
        job, (fold, weighed, hyper, told) = self.job, update
        pending, job.pending = job.pending, []
        self.grace_until_s = None
        job.version = fold.version
        self._sent_hyper = hyper or self._sent_hyper
        self._book(weighed)
        if job.gauges is not None:
            rate = fold.lr_factor
            job.gauges.folded(fold.version, weighed.num_samples, weighed.stalenesses, job.now_s, members=told, lr_factor=rate)
        return pending

    def give_up(self) -> None:
        """The group will not make the update that it was to sum; what is in it is pending still."""
        if self.job.vote is not None:
            del self.norms[self.job.vote.fold.version]
            self.job.vote = None

    def take_back(self, one: Pending, reason: str) -> None:
        """A gradient that was accepted is refused after all: its worker's memory, or the group that could sum it, is gone."""
        job, owner = self.job, one.owner
        job.pending.remove(one)
        owner.num_pending -= 1
        owner.refused = reason
        job.accounts.refuse(one.worker)
        job.note("refuse", worker=one.worker, step=one.step, reason=reason)
        if self.epochs.leases.ledger is not None:
            self.epochs.leases.ledger.unpend(one.positions)
        self.epochs.leases.refused(one.positions, not_finite=False)
        if not owner.is_gone:
            self.epochs.leases.recount(owner)

    def forget_hyper(self) -> None:
        """Others apply the order from now on: the next update tells them the settings."""
        self._sent_hyper = b""

    def _measured(self, gauges: Gauges, weighed: Weighed, version: int, clip: float) -> list[tuple[int, float]] | None:
        """What is measured of an update, None: nothing; its members as (samples, norm) where they tell the noise.

        A clipped, weighted, corrected or stale gradient says nothing of the noise in what the workers computed, nor does a single one.
        """
        pace = self.job.pace
        as_it_is = not clip and pace.correction.rule == "none" and pace.weighting.rule == "none"
        tells_noise = as_it_is and len(weighed.pending) > 1 and not any(weighed.stalenesses)
        if version % (FIRST_EVERY if tells_noise and gauges.wants_norms else MEASURE_EVERY) != 1:
            return None
        return [(one.samples, one.norm) for one in weighed.pending] if tells_noise else []

    def _book(self, weighed: Weighed) -> None:
        job, leases, tallies = self.job, self.epochs.leases, self.job.accounts.tallies
        ledger, distinct = leases.ledger, job.pace.distinct
        members: list[dict[str, object]] = []
        kept = job.kept
        if kept is not None:
            kept.enter(self.epochs.index)
        for one, member, tau in zip(weighed.pending, weighed.members, weighed.stalenesses, strict=True):
            owner = one.owner
            tallies[one.worker].samples += one.samples
            owner.num_pending -= 1
            if kept is not None:
                kept.folded(one.positions, one.samples)
            if ledger is not None:
                ledger.fold(one.positions)
            if owner.is_gone:
                self._bury(owner)
            elif owner.phase is RESTING or (owner.phase is WAITING and not distinct):
                # in distinct paces one who waits is asked again now, and recounted then
                leases.recount(owner)
            members.append({"worker": one.worker, "step": one.step, "staleness": tau, "weight": member.weight * weighed.scale})
        job.accounts.folded(weighed.num_samples, weighed.stalenesses, job.now_s, pace=job.pace.name)
        self.epochs.folded_more(weighed.num_samples, weighed.pending[0].samples)
        job.note("update", version=job.version, samples=job.accounts.samples, pace=job.pace.name, members=members)

    def _bury(self, gone: Worker) -> None:
        if not gone.num_pending:
            self.job.members.bury()
            self.job.tell_servers(Gone(gone.id, gone.incarnation))

    def _factor(self) -> float:
        """The learning rate's nominal factor, computed when the pace or the number of live members has changed."""
        job, now = self.job, (self.job.num_paces, self.job.members.crowd.live)
        if now != self._lr_factor_for:
            assert job.model is not None
            rule = lr_rule_of(job.pace, job.settings.lr_rule, scales_gradients=job.model.scales_gradients)
            self._lr_factor = lr_factor(job.pace, rule, num_live=max(1, now[1]), num_at_start=job.settings.num_workers)
            self._lr_factor_for = now
        return self._lr_factor

    def part_norm(self, sender: Address, part: PartNorm) -> bool:
        """A part of an update's norms; with the last one all learn the factors. Returns whether a vote is over so.

        A bound shortens the step: through the gradient where the optimizer feels its length, else through the learning rate.
        """
        job, norm = self.job, self.norms.get(part.version)
        if norm is None or sender not in norm.owed_by:
            return False
        norm.square += part.square
        norm.moved += part.moved
        norm.owed_by.remove(sender)
        if norm.owed_by:
            return False
        del self.norms[part.version]
        assert job.model is not None
        clipped, bounded = norm.factors()
        through_gradient = job.model.scales_gradients
        job.order(Factor(part.version, clipped * bounded, 1.0) if through_gradient else Factor(part.version, clipped, bounded))
        update, job.vote = job.vote, None
        if update is not None:
            self._made(update)
        return update is not None
