"""Planted mistakes, each of which the laws must notice: what the laws of `laws.py` are worth."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from paceline.logic import fold, gate
from paceline.logic.ledger import Ledger
from paceline.logic.progress import Progress
from paceline.logic.weighting import omega
from paceline.roles import folds, steps
from paceline.roles.coordinator import Coordinator
from paceline.roles.folds import Folds
from paceline.roles.leases import Leases
from paceline.roles.server import Server
from paceline.roles.steps import Steps
from randomworlds import play
from stores import Violation

MOST_SEEDS = 1500

Plant = Callable[[pytest.MonkeyPatch], None]


def verdict_becomes(module: object, name: str, old: gate.Verdict, new: gate.Verdict) -> Plant:
    """A rule of the gate that says `new` where it should say `old`."""
    rule = getattr(gate, name)

    def plant(patch):
        patch.setattr(module, name, lambda *args, **kwargs: new if (said := rule(*args, **kwargs)) is old else said)

    return plant


def joiner_starts_at_zero(patch):
    def enter(self, worker):
        if worker not in self._count:
            self._count[worker] = self._resting.pop(worker, 0)
            self._low = min(self._low, self._count[worker])
            self._tally[self._count[worker]] = self._tally.get(self._count[worker], 0) + 1

    patch.setattr(Progress, "enter", enter)


def resting_worker_holds_others_back(patch):
    patch.setattr(Progress, "rest", lambda self, worker: None)


def accept_is_counted_twice(patch):
    accept = Folds.accept

    def twice(self, worker, ready, base):
        due = accept(self, worker, ready, base)
        self.job.pending.append(self.job.pending[-1])
        return due

    patch.setattr(Folds, "accept", twice)


def quorum_must_be_met_exactly(patch):
    def fold_due(pace, num_pending, crowd):
        said = gate.fold_due(pace, num_pending, crowd)
        return gate.BELOW_QUORUM if said is gate.YES and num_pending != gate.quorum_in_force(pace, crowd) else said

    patch.setattr(folds, "fold_due", fold_due)


def pending_is_lost_when_the_pace_changes(patch):
    ask_for = Steps.ask_for

    def lossy(self, change):
        self.job.pending.clear()
        ask_for(self, change)

    patch.setattr(Steps, "ask_for", lossy)


def pace_changes_before_what_is_pending_is_folded(patch):
    ask_for = Steps.ask_for

    def hasty(self, change):
        ask_for(self, change)
        self._ask_all(self._make(change))

    patch.setattr(Steps, "ask_for", hasty)


def pace_changes_only_when_a_quorum_is_there(patch):
    """A change that waits for an update which its old pace may never make."""
    settle = Steps.settle

    def waiting(self):
        change, self.change = self.change, None
        settle(self)
        if change is not None:
            self.change = change
            if not self.job.pending:
                settle(self)

    patch.setattr(Steps, "settle", waiting)


def gradients_of_an_undone_past_are_accepted(patch):
    patch.setattr(steps, "admit", lambda pace, *, norm, base, version, floor: gate.admit(pace, norm=norm, base=base, version=version))


def undone_samples_are_not_leased_again(patch):
    patch.setattr(Ledger, "undo", lambda self, positions: None)


def learning_rate_is_not_rescaled(patch):
    factor = Folds._factor

    def stuck(self):
        if self._lr_factor_for == (0, 0):
            return factor(self)
        return self._lr_factor

    patch.setattr(Folds, "_factor", stuck)


def learning_rate_is_scaled_twice(patch):
    factor = Folds._factor
    patch.setattr(Folds, "_factor", lambda self: factor(self) ** 2)


def lead_off_by_one(patch):
    lead_of = Steps.lead_of
    patch.setattr(Steps, "lead_of", lambda self, worker: None if (lead := lead_of(self, worker)) is None else lead + 1)


def leads_go_on_over_a_change_of_pace(patch):
    patch.setattr(Progress, "reset", lambda self: self._blocked.clear())


def dead_workers_lease_is_kept(patch):
    release = Leases.release

    def kept(self, worker, *, consumed=False):
        if not worker.is_gone:
            release(self, worker, consumed=consumed)

    patch.setattr(Leases, "release", kept)


def dead_workers_gradient_is_dropped(patch):
    remove = Coordinator._remove

    def forgetful(self, worker, reason):
        self.job.pending = [one for one in self.job.pending if one.owner is not worker]
        worker.num_pending = 0
        remove(self, worker, reason)

    patch.setattr(Coordinator, "_remove", forgetful)


def refused_batch_is_forgotten(patch):
    patch.setattr(Leases, "refused", lambda self, positions, *, not_finite: None)


def weights_count_gradients_not_samples(patch):
    weigh = folds.weigh

    def even(pace, pending, **settings):
        weighed = weigh(pace, pending, **settings)
        share = 1.0 / (len(pending) * weighed.scale)
        members = tuple(msgspec.structs.replace(member, weight=share) for member in weighed.members)
        return msgspec.structs.replace(weighed, members=members)

    patch.setattr(folds, "weigh", even)


def overtaking_is_rewarded(patch):
    for module in (fold, folds):
        patch.setattr(module, "weight_of", lambda pace, staleness, *, num_live: omega(pace.weighting, staleness))


def change_pulls(patch, **fields):
    pull = Server._pull
    patch.setattr(Server, "_pull", lambda self, one: pull(self, one._replace(pull=msgspec.structs.replace(one.pull, **fields))))


def server_hands_a_buffer_back_too_early(patch):
    change_pulls(patch, taken=-1)


def server_answers_with_an_old_version(patch):
    change_pulls(patch, at_least=0)


def recalled_entries_stay_with_both(patch):
    def recall(self, victim, count):
        held = self.held.get(victim, ())
        taken = list(held)[-count:]
        for position in taken:
            self._free.appendleft(position)
        return []

    patch.setattr(Ledger, "recall", recall)


def joiner_counts_before_its_first_start(patch):
    joined = Coordinator._hello

    def early(self, known, sender, hello):
        joined(self, known, sender, hello)
        if (worker := self.job.members.workers.get(sender.id)) is not None and not worker.counted:
            self.job.members.count(worker)
            worker.is_open = True
            self.epochs.leases.recount(worker)

    patch.setattr(Coordinator, "_hello", early)


def group_applies_before_all_have_voted(patch):
    part_norm = Folds.part_norm

    def hasty(self, sender, part):
        if part.version in self.norms and self.job.vote is not None:
            self.norms[part.version].owed_by = {sender}
        return part_norm(self, sender, part)

    patch.setattr(Folds, "part_norm", hasty)


def lost_workers_gradient_stays_with_its_group(patch):
    patch.setattr(Folds, "take_back", lambda self, one, reason: None)


MUTANTS: dict[str, Plant] = {
    "the quiescence rule is dropped": verdict_becomes(folds, "fold_due", gate.QUIESCENT, gate.BELOW_QUORUM),
    "a joiner's lead is 0": joiner_starts_at_zero,
    "a resting worker holds the others back": resting_worker_holds_others_back,
    "an accept is counted twice": accept_is_counted_twice,
    "an old base is accepted in sync": verdict_becomes(steps, "admit", gate.LATE, gate.YES),
    "a gradient beyond max_staleness is accepted": verdict_becomes(steps, "admit", gate.STALE, gate.YES),
    "a gradient that is not finite is accepted": verdict_becomes(steps, "admit", gate.NOT_FINITE, gate.YES),
    "the quorum must be met exactly": quorum_must_be_met_exactly,
    "a worker starts with its gradient pending": verdict_becomes(steps, "may_start", gate.UNTIL_UPDATE, gate.YES),
    "a worker starts beyond its lead": verdict_becomes(steps, "may_start", gate.UNTIL_SLOWEST, gate.YES),
    "an update is made while workers compute in place": verdict_becomes(folds, "fold_due", gate.READ_IN_PLACE, gate.YES),
    "what is pending is lost when the pace changes": pending_is_lost_when_the_pace_changes,
    "the pace changes before what is pending is folded": pace_changes_before_what_is_pending_is_folded,
    "a change of pace waits for the old quorum": pace_changes_only_when_a_quorum_is_there,
    "a gradient of an undone past is accepted": gradients_of_an_undone_past_are_accepted,
    "undone samples are not leased again": undone_samples_are_not_leased_again,
    "the learning rate is not rescaled at a change": learning_rate_is_not_rescaled,
    "the learning rate is scaled twice": learning_rate_is_scaled_twice,
    "leads go on over a change of pace": leads_go_on_over_a_change_of_pace,
    "a worker starts one step beyond its lead": lead_off_by_one,
    "a dead worker's lease is not returned": dead_workers_lease_is_kept,
    "a dead worker's gradient is dropped": dead_workers_gradient_is_dropped,
    "a refused batch is forgotten": refused_batch_is_forgotten,
    "weights count gradients, not samples": weights_count_gradients_not_samples,
    "a gradient that overtook the others weighs more": overtaking_is_rewarded,
    "a server hands a buffer back before it has read it": server_hands_a_buffer_back_too_early,
    "a server answers a pull before it is new enough": server_answers_with_an_old_version,
    "recalled entries stay with their old holder too": recalled_entries_stay_with_both,
    "a group applies an update before all have voted": group_applies_before_all_have_voted,
    "a lost worker's gradient stays with its group": lost_workers_gradient_stays_with_its_group,
    "a joiner counts in the quorum before its first start": joiner_counts_before_its_first_start,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_laws_notice_when(mutant, monkeypatch):
    MUTANTS[mutant](monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            play(seed)
        except (Violation, AssertionError):
            return
    pytest.fail(f"{MOST_SEEDS} worlds went well although {mutant}")
