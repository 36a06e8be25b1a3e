"""Every named pace as a table: pushes in the order of their arrival, and exactly what comes of each."""

from __future__ import annotations

from math import sqrt

import pytest

from desk import Desk
from paceline.hybrid import parse_mode
from paceline.messages import Accept, Fold, Start
from paceline.pace import pace_names

# sentence: (pace, workers, [(who pushes, what comes of it), ...])
TABLE: dict[str, tuple[str, int, list[tuple[int, str]]]] = {
    "sync makes an update of all workers, in the order of their ids, and lets all go on": (
        "sync", 3,
        [(2, ""), (0, ""), (1, "update 0 1 2; go 0 1 2"), (1, ""), (0, ""), (2, "update 0 1 2; go 0 1 2")],
    ),
    "sync with one worker makes an update of each gradient": ("sync", 1, [(0, "update 0; go 0"), (0, "update 0; go 0")]),
    "backup:1 goes on without the slowest, whose late gradient is dropped": (
        "backup:1", 3,
        [(0, ""), (2, "update 0 2; go 0 2"), (1, "refuse 1: late; go 1"), (1, ""), (0, "update 0 1; go 0 1")],
    ),
    "backup:0 is sync": ("backup:0", 2, [(0, ""), (1, "update 0 1; go 0 1")]),
    "ksync:2 takes the first two different workers and drops the rest": (
        "ksync:2", 4,
        [(3, ""), (1, "update 1 3; go 1 3"), (0, "refuse 0: late; go 0"), (2, "refuse 2: late; go 2"), (0, ""), (2, "update 0 2; go 0 2")],
    ),
    "ksync:1 drops whoever read before the last update": (
        "ksync:1", 2,
        [(0, "update 0; go 0"), (1, "refuse 1: late; go 1"), (1, "update 1; go 1"), (0, "refuse 0: late; go 0")],
    ),
    "kbatchsync:3 counts gradients, so one worker may give two of them": (
        "kbatchsync:3", 2,
        [(0, "go 0"), (0, "go 0"), (1, "update 0 0 1; go 1"), (0, "refuse 0: late; go 0"), (1, "go 1")],
    ),
    "kasync:2 takes late gradients into the next update, and a worker waits for its own": (
        "kasync:2", 3,
        [(0, ""), (1, "update 0 1; go 0 1"), (2, ""), (0, "update 0 2; go 0 2")],
    ),
    "kbatchasync:2 takes any two gradients, late ones too": (
        "kbatchasync:2", 3,
        [(0, "go 0"), (0, "update 0 0; go 0"), (2, "go 2"), (1, "update 2 1; go 1")],
    ),
    "softsync:2 of five workers makes an update of two gradients of anyone": (
        "softsync:2", 5,
        [(4, "go 4"), (4, "update 4 4; go 4"), (0, "go 0"), (3, "update 0 3; go 3")],
    ),
    "softsync:1 makes an update of as many gradients as workers": ("softsync:1", 3, [(0, "go 0"), (1, "go 1"), (2, "update 0 1 2; go 2")]),
    "softsync:4 of four workers makes an update of each gradient": ("softsync:4", 4, [(2, "update 2; go 2"), (2, "update 2; go 2")]),
    "async applies each gradient when it arrives": (
        "async", 3,
        [(1, "update 1; go 1"), (1, "update 1; go 1"), (0, "update 0; go 0"), (2, "update 2; go 2")],
    ),
    "ssp:1 lets nobody be more than one step ahead of the slowest": (
        "ssp:1", 3,
        [(0, "update 0; go 0"), (0, "update 0"), (1, "update 1; go 1"), (2, "update 2; go 0 2"), (0, "update 0"), (1, "update 1; go 1"),
         (2, "update 2; go 0 2")],
    ),
    "ssp:0 applies at once and goes on in lockstep": ("ssp:0", 2, [(1, "update 1"), (0, "update 0; go 0 1")]),
    "ssp:2 lets a worker take three steps while another takes its first": (
        "ssp:2", 2,
        [(0, "update 0; go 0"), (0, "update 0; go 0"), (0, "update 0"), (1, "update 1; go 0 1")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", TABLE)
def test_pace(sentence):
    pace, num_workers, rows = TABLE[sentence]
    desk = Desk(pace, num_workers)
    for number, (worker, expected) in enumerate(rows):
        assert desk.push(worker) == expected, f"push {number}, of worker {worker}"


def test_the_table_has_every_named_pace():
    assert {pace.partition(":")[0] for pace, _, _ in TABLE.values()} == {shown.partition(":")[0] for shown, _ in pace_names()}


def test_a_quorum_above_the_holders_is_clipped_and_said():
    desk = Desk("ksync:3", 4)
    desk.push(0)
    desk.lose(3)
    assert desk.push(1) == ""
    assert not desk.warnings
    assert desk.lose(2) == "update 0 1; go 0 1"
    assert desk.warnings == ["pace ksync:3 asks for 3 different workers and 2 are live: each update takes what they have"]


def test_max_staleness_refuses_what_read_too_long_ago():
    desk = Desk("async,max_staleness=1", 2)
    assert desk.push(0) == "update 0; go 0"
    assert desk.push(0) == "update 0; go 0"
    assert desk.push(1) == "refuse 1: stale; go 1"
    assert desk.starts[1].refused == "stale"
    assert desk.push(1) == "update 1; go 1"
    assert desk.starts[1].refused == ""


def test_a_worker_refused_three_times_as_too_stale_is_named_with_advice_once():
    desk = Desk("async,max_staleness=0", 2)
    for _ in range(2):
        for _ in range(4):
            assert desk.push(0) == "update 0; go 0"
            assert desk.push(1) == "refuse 1: stale; go 1"
        assert desk.push(1) == "update 1; go 1"
        assert desk.push(0) == "refuse 0: stale; go 0"
    told = [sentence for sentence in desk.warnings if "in a row" in sentence]
    assert told == ["worker 1 was refused 3 times in a row as too stale; bound its lead instead, for example with --pace ssp:3"]


def test_the_base_is_the_oldest_version_that_was_read_of_any_shard():
    desk = Desk("ksync:1", 1)
    desk.push(0)
    start = desk.starts[0]
    assert start.at_least == 1
    assert desk.push(0, read=0) == "refuse 0: late; go 0"


def test_a_grace_waits_for_more_members_after_the_quorum():
    desk = Desk("ksync:1,grace_s=0.5", 3)
    assert desk.push(1) == ""
    assert desk.wait(0.4) == ""
    assert desk.push(0) == ""
    assert desk.wait(0.2) == "update 0 1; go 0 1"
    assert desk.push(2) == "refuse 2: late; go 2"


def test_a_grace_ends_at_once_when_nobody_is_left_to_wait_for():
    desk = Desk("ksync:1,grace_s=5", 2)
    assert desk.push(1) == ""
    assert desk.push(0) == "update 0 1; go 0 1"


# --- weights ------------------------------------------------------------------------------------------------


def effective(fold: Fold) -> list[float]:
    return [member.weight * fold.scale for member in fold.members]


def test_a_sync_update_divides_by_the_samples_of_exactly_its_members():
    desk = Desk("sync", 3)
    for worker, samples in enumerate((8, 2, 6)):
        desk.push(worker, samples=samples)
    assert effective(desk.folds[0]) == [0.5, 0.125, 0.375]
    assert (desk.folds[0].scale, desk.folds[0].lr_factor) == (1.0, 1.0)


OMEGAS = [1 / 3, 1 / 3, 1 / 3, 1 / 4]
"""Those of equal workers at least, although the first two gradients are not stale."""


@pytest.mark.parametrize(("scales", "weights", "factor"), [(True, OMEGAS, [1.0] * 4), (False, [1.0] * 4, OMEGAS)])
def test_async_weighs_by_staleness_in_the_gradient_for_sgd_and_in_the_learning_rate_for_others(scales, weights, factor):
    desk = Desk("async", 3, scales_gradients=scales)
    for worker in (0, 0, 1, 2):
        desk.push(worker)
    assert [effective(fold)[0] for fold in desk.folds] == pytest.approx(weights)
    assert [fold.lr_factor for fold in desk.folds] == pytest.approx(factor)


def test_softsync_weighs_by_one_over_staleness_within_an_update():
    desk = Desk("softsync:2", 4, num_batches=100)
    for worker in (0, 0, 1, 1, 2, 0):
        desk.push(worker)
    # worker 2 read version 0 and is folded into version 3: staleness 2; worker 0 read version 1: staleness 1
    assert [[member.worker for member in fold.members] for fold in desk.folds] == [[0, 0], [1, 1], [2, 0]]
    assert effective(desk.folds[2]) == pytest.approx([0.5 / 2, 0.5 / 1])


def test_softsync_with_an_adaptive_optimizer_averages_and_lowers_the_learning_rate():
    desk = Desk("softsync:2", 4, scales_gradients=False)
    for worker in (0, 0, 1, 1, 2, 0):
        desk.push(worker)
    assert effective(desk.folds[2]) == pytest.approx([1 / 3, 2 / 3])
    assert desk.folds[2].lr_factor == pytest.approx(0.75)


def test_what_waits_for_a_quorum_of_gradients_is_gathered_at_once_and_scaled_at_its_fold():
    desk = Desk("kbatchasync:3", 3)
    desk.push(0, samples=2)
    desk.push(1, samples=4)
    assert [accept.member.weight for accept in desk.accepts] == [2.0, 4.0]
    desk.push(2, samples=2)
    assert len(desk.accepts) == 2
    fold = desk.folds[0]
    assert [member.gathered for member in fold.members] == [True, True, False]
    (update,) = [event for event in desk.events if event["event"] == "update"]
    assert effective(fold) == [member["weight"] for member in update["members"]] == [0.25, 0.5, 0.25]


def test_distinct_paces_gather_nothing_before_the_fold():
    desk = Desk("kasync:2", 3)
    desk.push(0)
    desk.push(2)
    assert not desk.accepts
    assert not any(isinstance(send.message, Accept) for send in desk.sent)


# --- the learning rate --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pace", "rule", "scales", "factor"),
    [
        ("sync", None, True, 1.0),
        ("sync", "linear", False, 1.0),
        ("ksync:3", None, True, 0.75),
        ("ksync:3", None, False, sqrt(0.75)),
        ("ksync:3", "none", True, 1.0),
        ("ksync:3", "sqrt", True, sqrt(0.75)),
        ("ksync:3,lr_rule=linear", "none", True, 0.75),
        ("backup:1", None, True, 0.75),
        ("kasync:2", "linear", False, 0.5),
        ("kbatchsync:6", None, True, 1.5),
        ("kbatchasync:2", None, True, 0.5),
        ("ssp:3", None, True, 0.25),
        ("ssp:3", None, False, 0.5),
        ("softsync:2", None, True, 1.0),
        ("async", "linear", True, 1.0),
        ("async,weighting=none", None, True, 0.25),
    ],
)
def test_the_learning_rate_follows_the_nominal_quorum(pace, rule, scales, factor):
    desk = Desk(pace, 4, lr_rule=rule, scales_gradients=scales)
    turn = 0
    while not desk.folds:
        desk.push(turn % 4)
        turn += 1
    assert desk.folds[0].lr_factor == pytest.approx(factor)


def test_the_factor_is_computed_anew_when_a_worker_leaves():
    desk = Desk("backup:1", 4)
    for worker in (0, 1, 2):
        desk.push(worker)
    desk.lose(3)
    for worker in (0, 1):
        desk.push(worker)
    assert [fold.lr_factor for fold in desk.folds] == [0.75, 0.5]


# --- changes of pace ----------------------------------------------------------------------------------------


def test_what_is_pending_is_folded_under_the_old_pace_before_the_new_one():
    desk = Desk("kasync:3", 4)
    desk.push(0)
    desk.push(2)
    assert desk.set_pace("async") == "update 0 2; go 0 2"
    told = {"event": "pace", "from": "kasync:3", "to": "async", "why": "a test wants it", "version": 1, "samples": 8}
    assert desk.events[-1] == told
    assert desk.starts[0].pace is not None
    assert desk.push(1) == "update 1; go 1"


def test_the_summary_tells_the_samples_of_each_pace():
    desk = Desk("kasync:3", 4, samples=8)
    desk.push(0)
    desk.push(2)
    desk.set_pace("async")
    desk.push(1)
    assert desk.coordinator.summary()["paces"] == {"kasync:3": 16, "async": 8}


def test_a_change_waits_while_workers_compute_on_the_shards_own_memory():
    desk = Desk("sync", 3)
    desk.push(0)
    assert desk.set_pace("async") == ""
    assert desk.push(1) == ""
    assert desk.coordinator.job.pace.name == "sync"
    assert desk.push(2) == "update 0 1 2; go 0 1 2"
    assert desk.coordinator.job.pace.name == "async"
    assert not desk.starts[0].in_place


def test_after_a_change_nothing_is_folded_until_the_last_reader_in_place_is_done():
    desk = Desk("sync", 2)
    assert desk.set_pace("async") == ""
    assert desk.push(0) == "go 0"
    assert desk.push(0) == "go 0"
    assert desk.push(1) == "update 0 0 1; go 1"


def test_leads_start_again_at_nothing_when_the_pace_changes():
    desk = Desk("async", 2)
    for _ in range(5):
        desk.push(0)
    desk.set_pace("ssp:1")
    assert desk.push(0) == "update 0; go 0"
    assert desk.push(0) == "update 0"
    assert desk.set_pace("ssp:3") == "go 0"


def test_a_gradient_under_way_is_judged_by_the_new_pace():
    desk = Desk("async", 2)
    desk.push(0)
    desk.set_pace("sync")
    assert desk.push(1) == "refuse 1: late; go 1"
    assert desk.starts[1].in_place


def test_sync_reads_in_place_and_others_do_not():
    assert Desk("sync", 2).starts[0].in_place
    assert not Desk("backup:0", 2).starts[0].in_place
    assert not Desk("async", 2).starts[0].in_place


def test_start_names_the_newest_version_ordered():
    desk = Desk("async", 2)
    desk.push(0)
    desk.push(0)
    desk.push(1)
    assert [desk.starts[worker].at_least for worker in (0, 1)] == [2, 3]
    assert isinstance(desk.starts[0], Start)


# --- what servers measure -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("clip", "measured"), [(0.0, [1, 4, 7, 10]), (1.0, [1, 11])])
def test_updates_that_cannot_tell_the_noise_are_not_measured_more_often_for_it(clip, measured):
    desk = Desk("sync", 2, hybrid=parse_mode("hybrid"))
    for _ in range(12):
        desk.push(0, clip=clip)
        desk.push(1, clip=clip)
    assert [fold.version for fold in desk.folds if fold.measure] == measured
