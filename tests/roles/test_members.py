"""Who joins, who leaves, who is waited for, and how a job ends."""

from __future__ import annotations

import msgspec
import pytest

from desk import Desk
from paceline.errors import ConfigError
from paceline.hybrid import Hybrid
from paceline.messages import (
    Address,
    AtEnd,
    Attached,
    Begin,
    Bye,
    Drawn,
    Enter,
    EpochOver,
    Finish,
    Finished,
    GiveBack,
    Go,
    Gone,
    Grant,
    Halt,
    Hello,
    LeaseRequest,
    Load,
    Meet,
    Met,
    NotFinite,
    PartNorm,
    Restate,
    Seeded,
    ServerHello,
    Serving,
    StopRun,
    Welcome,
)
from paceline.pace import parse_pace
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import End, JobSettings, Send
from world import model_of

SERVER = Address("server")


def sent(desk: Desk, kind: type) -> list:
    return [send.message for send in desk.sent if isinstance(send.message, kind)]


def told(desk: Desk, worker: int, kind: type) -> list:
    return [send.message for send in desk.sent if isinstance(send.message, kind) and send.to == Address("worker", worker)]


# --- joining ------------------------------------------------------------------------------------------------


def messages(effects) -> list:
    return [(str(effect.to), type(effect.message)) for effect in effects if isinstance(effect, Send)]


def test_the_lowest_worker_writes_the_initial_values_and_the_others_come_after():
    job = Coordinator(JobSettings(2, 1, parse_pace("sync")))
    worker = [Address("worker", number) for number in range(2)]
    assert messages(job.handle(worker[1], Hello(1, 0, 1, "host", model_of()), 0.0)) == []
    assert messages(job.handle(worker[0], Hello(0, 0, 1, "host", model_of()), 0.0)) == [("worker 0", Welcome)]
    assert messages(job.handle(worker[0], Seeded(False), 0.0)) == []
    assert messages(job.handle(SERVER, ServerHello(0, 0, "host"), 0.0))[0][0] == "server 0"
    assert messages(job.handle(SERVER, Serving(), 0.0)) == [("worker 1", Welcome)]
    assert messages(job.handle(worker[1], Attached(), 0.0)) == []
    assert messages(job.handle(worker[0], Attached(), 0.0)) == [("worker 1", Go), ("worker 0", Go)]


def test_when_the_patience_is_over_those_that_are_there_begin():
    job = Coordinator(JobSettings(3, 1, parse_pace("sync"), patience_s=8.0))
    job.handle(Address("worker", 2), Hello(2, 0, 1, "host", model_of()), 0.0)
    assert messages(job.expire(7.0)) == []
    assert messages(job.expire(8.0)) == [("worker 2", Welcome)]


def test_a_worker_that_ends_well_without_joining_is_not_waited_for():
    job = Coordinator(JobSettings(2, 1, parse_pace("sync"), patience_s=60.0))
    job.handle(Address("worker", 1), Hello(1, 0, 1, "host", model_of()), 0.0)
    assert messages(job.handle(Address("worker", 0), Bye(), 1.0)) == [("worker 1", Welcome)]
    assert job.job.accounts.lost == []


def test_a_worker_that_ends_well_before_the_others_join_is_not_waited_for():
    job = Coordinator(JobSettings(2, 1, parse_pace("sync"), patience_s=60.0))
    assert job.handle(Address("worker", 0), Bye(), 0.0) == []
    assert messages(job.handle(Address("worker", 1), Hello(1, 0, 1, "host", model_of()), 1.0)) == [("worker 1", Welcome)]


def test_nobody_ever_comes():
    job = Coordinator(JobSettings(3, 1, parse_pace("sync"), patience_s=8.0))
    assert job.expire(79.0) == []
    end = job.expire(80.0)[-1]
    assert (end.code, end.sentence) == (
        5,
        "no worker has called run.prepare within 80 s; if the start takes that long, raise --patience",
    )


def test_a_short_patience_does_not_make_the_start_hasty():
    for joins in (False, True):
        job = Coordinator(JobSettings(3, 1, parse_pace("sync"), patience_s=0.5))
        if joins:
            job.handle(Address("worker", 0), Hello(0, 0, 1, "host", model_of()), 0.0)
        assert not any(isinstance(effect, End) for effect in job.expire(59.9))
        assert job.expire(60.0)[-1].sentence.endswith("; if the start takes that long, raise --patience")


def test_a_job_that_does_not_begin_says_whom_it_waits_for():
    job = Coordinator(JobSettings(1, 2, parse_pace("sync"), patience_s=8.0))
    job.handle(Address("worker", 0), Hello(0, 0, 1, "host", model_of()), 0.0)
    end = job.expire(80.0)[-1]
    assert (end.code, end.sentence) == (
        5,
        "the job did not begin within 80 s: it waits for server 0, server 1, worker 0; if the start takes that long, raise --patience",
    )


@pytest.mark.parametrize(("host", "places"), [("a", ("", "")), ("b", (" on b", " on a"))])
def test_a_model_that_differs_ends_the_job_and_says_where(host: str, places: tuple[str, str]):
    job = Coordinator(JobSettings(2, 1, parse_pace("sync")))
    other = msgspec.structs.replace(model_of(), parameters=(msgspec.structs.replace(model_of().parameters[0], shape=(65,)),))
    job.handle(Address("worker", 0), Hello(0, 0, 1, "a", model_of()), 0.0)
    end = job.handle(Address("worker", 1), Hello(1, 0, 1, host, other), 0.0)[-1]
    assert end.code == 1
    assert f"worker 1's model{places[0]} is not that of worker 0{places[1]}: parameter w [64] float32" in end.sentence


def test_the_scripts_pace_counts_only_when_nobody_chose_one():
    for is_open, name in ((True, "ssp:2"), (False, "sync")):
        job = Coordinator(JobSettings(1, 1, parse_pace("sync"), pace_is_open=is_open))
        job.handle(Address("worker", 0), Hello(0, 0, 1, "host", model_of(), "ssp:2"), 0.0)
        assert job.job.pace.name == name
    for text, name, policy in (("hybrid:sync@0,async@0.5", "sync", "schedule"), ("dssp:2:9", "ssp:2", "dssp"), ("async", "async", None)):
        job = Coordinator(JobSettings(2, 1, parse_pace("sync"), pace_is_open=True, hybrid=Hybrid("hybrid", "goodput", parse_pace("sync"))))
        job.handle(Address("worker", 0), Hello(0, 0, 1, "host", model_of(), text), 0.0)
        hybrid = job.job.settings.hybrid
        assert (job.job.pace.name, hybrid and hybrid.policy) == (name, policy)
    job = Coordinator(JobSettings(1, 1, parse_pace("sync"), pace_is_open=True))
    end = job.handle(Address("worker", 0), Hello(0, 0, 1, "host", model_of(), "nonsense"), 0.0)[-1]
    assert end.code == 2
    assert "worker 0: unknown pace 'nonsense'" in end.sentence


def test_a_joiner_counts_in_no_quorum_before_its_first_start():
    desk = Desk("sync", 2)
    desk.hello(2)
    desk.tell(2, Attached())
    desk.tell(2, Enter(0))
    desk.push(0)
    assert desk.push(1) == "update 0 1; go 0 1"
    desk.tell(2, LeaseRequest(0, wait=True))
    desk.tell(2, Begin(0))
    desk.push(0)
    assert desk.push(1) == ""
    assert desk.push(2) == "update 0 1 2; go 0 1 2"


def test_a_joiner_starts_at_the_fewest_steps_and_holds_nobody_back():
    desk = Desk("ssp:1", 2)
    for _ in range(3):
        for worker in (0, 1):
            desk.push(worker)
    desk.join(2)
    assert desk.push(0) == "update 0; go 0"
    assert desk.push(0) == "update 0"
    assert desk.push(1) == "update 1; go 1"
    assert desk.push(2) == "update 2; go 0 2"


def test_a_worker_at_rest_holds_nobody_back():
    desk = Desk("ssp:0", 2)
    desk.tell(1, GiveBack(0))
    for _ in range(4):
        assert desk.push(0) == "update 0; go 0"


def test_a_worker_that_was_started_again_takes_its_own_place():
    desk = Desk("sync", 2)
    desk.push(0)
    assert desk.hello(1, incarnation=1) == "update 0; go 0"
    assert desk.coordinator.job.accounts.lost == [1]
    assert told(desk, 1, Welcome)[-1].first is False
    assert desk.coordinator.job.members.workers[1].incarnation == 1


def test_a_message_of_one_that_is_no_member_is_answered_by_nothing():
    desk = Desk("async", 2)
    desk.lose(1)
    num_sent = len(desk.sent)
    desk.tell(1, Begin(0))
    assert len(desk.sent) == num_sent


def test_the_same_gradient_twice_is_one_gradient():
    desk = Desk("kasync:2", 3)
    desk.push(0)
    assert desk.push(0) == ""
    assert len(desk.coordinator.job.pending) == 1
    assert desk.push(1) == "update 0 1; go 0 1"


# --- leaving ------------------------------------------------------------------------------------------------


def test_a_dead_workers_arrived_gradient_is_folded_and_its_batch_leased_again():
    desk = Desk("sync", 3)
    desk.push(0)
    ledger = desk.coordinator.epochs.leases.ledger
    lease = [*desk.coordinator.job.members.workers[1].started, *ledger.held[1]]  # pyright: ignore[reportOptionalMemberAccess]
    desk.lose(0)
    assert not [gone for gone in sent(desk, Gone) if gone.worker == 0]
    desk.lose(1)
    assert desk.push(2) == "update 0 2; go 2"
    assert [gone.worker for gone in sent(desk, Gone)] == [1, 0]
    assert list(ledger._free)[:4] == sorted(lease)  # pyright: ignore[reportOptionalMemberAccess]


def test_a_dead_workers_pending_gradient_counts_in_the_quorum():
    desk = Desk("ksync:2", 3)
    desk.push(0)
    assert desk.lose(0) == ""
    assert desk.push(2) == "update 0 2; go 2"


def test_the_death_of_the_one_that_is_waited_for_makes_the_update():
    desk = Desk("sync", 3)
    desk.push(0)
    desk.push(1)
    assert desk.lose(2) == "update 0 1; go 0 1"


def test_the_death_of_the_slowest_frees_those_that_wait_for_it():
    desk = Desk("ssp:0", 3)
    desk.push(0)
    desk.push(1)
    assert desk.lose(2) == "go 0 1"


def test_the_last_worker_lost_ends_the_job_with_code_4():
    desk = Desk("sync", 2)
    desk.lose(0)
    desk.lose(1)
    assert desk.end == (4, "worker 1, the last one, was lost: killed")


def test_a_server_lost_ends_the_job_with_code_4_and_tells_everyone():
    desk = Desk("async", 1)
    desk.push(0)
    desk._note(desk.coordinator.left(SERVER, "killed", desk.now_s))
    assert desk.end is not None
    assert desk.end.code == 4
    assert desk.end.sentence.startswith("server 0 was lost (killed)")
    assert desk.end.sentence.endswith("the run ends after update 1")
    assert len(told(desk, 0, Halt)) == 1


# --- refusals -----------------------------------------------------------------------------------------------


def test_a_refused_batch_returns_to_the_front_unchanged():
    desk = Desk("async", 2)
    assert desk.push(0, norm=float("nan")) == "refuse 0: not finite; go 0"
    ledger = desk.coordinator.epochs.leases.ledger
    assert ledger is not None
    assert ledger._free[0] == 0


def test_ten_gradients_in_a_row_that_are_not_finite_end_the_run_and_name_worker_and_step():
    desk = Desk("async", 1)
    for _ in range(9):
        desk.push(0, norm=float("inf"))
    desk.push(0, norm=float("inf"))
    assert desk.end == (1, "worker 0 pushed 10 gradients in a row that were not finite, the last in step 9")


def test_a_batch_refused_three_times_for_its_numbers_is_skipped_and_named():
    desk = Desk("async", 1, num_batches=2)
    for _ in range(2):
        desk.push(0, norm=float("nan"))
        # the batch that came back waits behind what the worker holds
        desk.push(0, norm=float("nan"))
    desk.push(0, norm=float("nan"))
    desk.push(0, norm=float("nan"))
    assert [sentence for sentence in desk.warnings if "skipped" in sentence] == [
        "batch(es) 0 of epoch 0 gave 3 gradients that were not finite: skipped",
        "batch(es) 1 of epoch 0 gave 3 gradients that were not finite: skipped",
    ]
    desk.tell(0, LeaseRequest(0, wait=True))
    assert told(desk, 0, EpochOver) == [EpochOver(0, 0, False)]


def test_a_push_of_what_was_not_started_ends_the_job():
    desk = Desk("async", 1)
    desk.push(0, samples=0)
    assert desk.end is not None
    assert desk.end.code == 4
    assert desk.end.sentence.startswith("worker 0 pushed step 0 of 0 samples")


# --- epochs -------------------------------------------------------------------------------------------------


def test_an_epoch_is_over_when_every_sample_is_folded_and_the_next_waits_for_all():
    desk = Desk("async", 2, num_batches=2)
    desk.push(0)
    desk.tell(0, LeaseRequest(0, wait=True))
    assert told(desk, 0, EpochOver) == []
    desk.push(1)
    assert told(desk, 0, EpochOver) == [EpochOver(0, 2, False)]
    desk.at_end(0)
    desk.tell(0, Enter(1))
    assert desk.coordinator.epochs.index == 0
    desk.tell(1, LeaseRequest(0, wait=True))
    desk.at_end(1)
    assert desk.coordinator.epochs.index == 1
    assert desk.coordinator.job.accounts.ledgers.once == 8


def test_what_a_worker_does_not_start_is_called_back_for_one_that_waits():
    desk = Desk("async", 2, num_batches=16)
    for _ in range(20):
        if desk.starts[0].work:
            desk.push(0)
    assert not desk.starts[0].work
    held = len(desk.coordinator.epochs.leases.ledger.held[1])  # pyright: ignore[reportOptionalMemberAccess]
    assert held
    desk.tell(0, LeaseRequest(0, wait=True))
    assert told(desk, 0, Grant)[-1].positions
    desk.push(1)
    assert set(desk.starts[1].recalled) == set(told(desk, 0, Grant)[-1].positions)


def test_first_leases_of_a_distinct_pace_wait_for_every_member_but_not_for_ever():
    desk = Desk("sync", 2, num_batches=2)
    for worker in (0, 1):
        desk.push(worker)
        desk.tell(worker, LeaseRequest(0, wait=True))
        desk.at_end(worker)
    desk.tell(0, Enter(1))
    desk.draw(4, epoch=1)
    num_grants = len(told(desk, 0, Grant))
    desk.tell(0, LeaseRequest(1, wait=True))
    assert len(told(desk, 0, Grant)) == num_grants
    desk.wait(1.5)
    assert len(told(desk, 0, Grant)) == num_grants + 1


def test_a_stop_ends_the_epoch_for_all_after_what_is_computed():
    desk = Desk("async", 2)
    desk.tell(0, StopRun("good enough"))
    assert desk.push(0) == "update 0; go 0"
    assert not desk.starts[0].work
    assert desk.starts[0].stop
    desk.tell(0, LeaseRequest(0, wait=True))
    desk.push(1)
    assert told(desk, 0, EpochOver) == [EpochOver(0, 2, True)]


def test_a_run_ends_when_all_have_said_bye_and_the_servers_have_finished():
    desk = Desk("async", 2, num_batches=2)
    for worker in (0, 1):
        desk.push(worker)
        desk.tell(worker, LeaseRequest(0, wait=True))
        desk.at_end(worker)
    desk.tell(0, Bye())
    assert not sent(desk, Finish)
    desk.tell(1, Bye())
    assert len(sent(desk, Finish)) == 1
    desk.hello(2)
    assert told(desk, 2, Halt) == [Halt(0, "the run has ended without this worker")]
    desk.tell(SERVER, Finished(2))
    assert desk.end == (0, "")


def test_an_epoch_out_of_turn_ends_the_job():
    desk = Desk("async", 1)
    desk.tell(0, Enter(2))
    assert desk.end is not None
    assert desk.end.sentence == "worker 0 begins epoch 2 while the run is in epoch 0; all workers must run the same loops"


# --- meetings and states ------------------------------------------------------------------------------------


def test_all_live_workers_meet_and_a_death_does_not_hold_them_up():
    desk = Desk("async", 3)
    desk.tell(0, Meet("accuracy", (1.0,), 2.0))
    desk.tell(2, Meet("accuracy", (4.0,), 1.0))
    assert not sent(desk, Met)
    desk.lose(2)
    desk.tell(1, Meet("accuracy", (3.0,), 1.0))
    assert told(desk, 0, Met) == [Met("accuracy", (5.0,), 3.0, 0)]


def test_one_that_joined_later_is_not_waited_for_at_a_meeting_before_its_first_epoch():
    desk = Desk("async", 2, num_batches=2)
    for worker in (0, 1):
        desk.push(worker)
        desk.tell(worker, LeaseRequest(0, wait=True))
    desk.hello(2)
    desk.tell(2, Attached())
    assert told(desk, 2, Go)[-1].epoch == 1
    for worker in (0, 1):
        desk.tell(worker, Meet("accuracy", (1.0,), 1.0))
    assert told(desk, 0, Met)
    desk.tell(2, Meet("before the loop", (1.0,), 1.0))
    assert told(desk, 2, Met) == [Met("before the loop", (1.0,), 1.0, 2)]


def test_a_state_that_a_late_joiner_loads_before_its_first_epoch_is_passed_over():
    desk = Desk("async", 1)
    desk.hello(1)
    desk.tell(1, Attached())
    desk.tell(1, Load(True, False))
    assert not sent(desk, Restate)
    desk.tell(0, Load(True, False))
    assert sent(desk, Restate) == [Restate(1, True, False)]


def test_what_is_pending_is_folded_before_a_state_is_loaded():
    desk = Desk("kasync:3", 3)
    desk.push(0)
    desk.push(1)
    assert desk.tell(2, Load(True, False)) == "update 0 1; go 0 1"
    assert sent(desk, Restate) == [Restate(2, True, False)]


# --- settings of an update ----------------------------------------------------------------------------------


def test_an_update_has_the_settings_of_its_lowest_member_sent_when_they_change():
    desk = Desk("sync", 2)
    desk.push(1, hyper=b"lr 1")
    desk.push(0, hyper=b"lr 0")
    desk.push(1)
    desk.push(0)
    desk.push(1)
    desk.push(0, hyper=b"lr 2")
    assert [fold.hyper for fold in desk.folds] == [b"lr 0", b"", b"lr 2"]


def test_parameters_absent_in_all_members_are_left_alone():
    desk = Desk("sync", 2)
    desk.push(0, absent=b"\x06")
    desk.push(1, absent=b"\x03")
    desk.push(0, absent=b"\x06")
    desk.push(1)
    assert [fold.absent for fold in desk.folds] == [b"\x02", b""]


def test_a_clipped_update_gets_its_factor_when_all_servers_have_told_their_part():
    desk = Desk("sync", 1)
    desk.push(0, clip=1.0)
    assert desk.folds[0].clip == 1.0
    desk.tell(SERVER, PartNorm(1, 16.0))
    factor = desk.sent[-1].message
    assert factor.factor == pytest.approx(0.25)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_shard_that_is_not_finite_ends_the_run_at_that_update():
    desk = Desk("async", 1)
    desk.tell(SERVER, NotFinite(3, "fc.weight"))
    assert desk.end == (1, "parameter fc.weight is not finite after update 3; the learning rate may be too high")


def test_a_pace_that_cannot_work_is_refused():
    desk = Desk("sync", 2)
    with pytest.raises(ConfigError):
        desk.set_pace("ksync:3")


# --- deadlines ----------------------------------------------------------------------------------------------


def test_a_worker_whose_step_takes_too_long_is_named():
    desk = Desk("sync", 2, patience_s=8.0)
    desk.push(0, compute_s=0.1)
    desk.wait(20.0)
    assert desk.end is not None
    assert desk.end.code == 5
    assert desk.end.sentence.startswith("waited 8 s for worker 1, which computes step 0")


def test_a_long_step_is_no_fault_when_steps_are_long():
    desk = Desk("sync", 2, num_batches=200, patience_s=8.0)
    for _ in range(60):
        for worker in (0, 1):
            desk.push(worker, compute_s=5.0)
    desk.push(0, compute_s=5.0)
    desk.wait(60.0)
    assert desk.end is None
    desk.wait(60.0)
    assert desk.end is not None


def test_nobody_waits_so_nobody_is_late():
    desk = Desk("async", 2, patience_s=8.0)
    desk.wait(500.0)
    assert desk.end is None


def test_a_long_evaluation_is_not_a_stuck_worker():
    desk = Desk("async", 2, num_batches=2, patience_s=8.0)
    for worker in (0, 1):
        desk.push(worker)
        desk.tell(worker, LeaseRequest(0, wait=True))
    desk.at_end(1)
    desk.tell(1, Enter(1))
    desk.wait(70.0)
    assert desk.end is None
    desk.wait(20.0)
    assert desk.end == (5, "waited 80 s for worker 0, which is between leases (an evaluation?); raise --patience")


def test_one_that_does_not_come_to_a_meeting_is_named():
    desk = Desk("async", 3, patience_s=8.0)
    desk.tell(0, Meet("accuracy"))
    desk.tell(2, Meet("accuracy"))
    desk.wait(70.0)
    assert desk.end is None
    desk.wait(20.0)
    assert desk.end == (5, "waited 80 s for worker(s) 1 to meet the others at accuracy; if they may take that long, raise --patience")


def test_a_server_that_does_not_tell_its_norm_is_waited_for_with_a_deadline():
    desk = Desk("async", 1, patience_s=8.0)
    desk.push(0, clip=1.0)
    desk.wait(29.0)
    assert desk.end is None, "a server runs our code only: it is waited for longer than a short patience"
    desk.wait(5.0)
    assert desk.end == (5, "waited 30 s for server 0 to report on update 1")


def test_a_server_that_does_not_finish_is_named():
    desk = Desk("async", 1, num_batches=1, patience_s=8.0)
    desk.push(0)
    desk.tell(0, LeaseRequest(0, wait=True))
    desk.tell(0, AtEnd(0))
    desk.tell(0, Bye())
    desk.wait(29.0)
    assert desk.end is None
    desk.wait(5.0)
    assert desk.end == (5, "waited 30 s for server 0 to finish")


def test_a_run_that_is_stopped_between_two_epochs_has_not_skipped_the_next_one():
    desk = Desk("async", 2, num_batches=2)
    for worker in (0, 1):
        desk.push(worker)
        desk.tell(worker, LeaseRequest(0, wait=True))
    for worker in (0, 1):
        desk.at_end(worker)
    desk.tell(1, Enter(1))
    desk.tell(1, Drawn(1, (4, 4, 4), (), 3))
    desk.tell(0, StopRun("good enough"))
    desk.tell(1, LeaseRequest(1, wait=True))
    desk.tell(0, Bye())
    desk.tell(1, Bye())
    desk.tell(Address("server"), Finished(2))
    assert desk.end == (0, "worker 0: good enough")
    assert desk.coordinator.summary()["ledger"] == {"once": 8, "repeated": 0, "skipped": 0, "undone": 0}


def test_a_script_that_ends_in_the_middle_of_an_epoch_is_told_of():
    desk = Desk("async", 3)
    desk.tell(1, Bye())
    assert desk.warnings == ["worker 1's script ended in the middle of epoch 0; its samples go to the others"]
    desk.tell(2, GiveBack(0))
    desk.tell(2, Bye())
    assert len(desk.warnings) == 1, "one that has left its loop before is done with it"


def test_the_lowest_live_worker_is_the_first_one_from_the_end_of_an_epoch_on():
    desk = Desk("async", 3, num_batches=3)
    desk.lose(0)
    desk.join(3)
    assert [told(desk, worker, Go)[-1].first for worker in (1, 2, 3)] == [0, 0, 0], "until the epoch's end all agree on who it was"
    for worker in (1, 2, 3):
        desk.push(worker)
        desk.tell(worker, LeaseRequest(0, wait=True))
    assert [told(desk, worker, EpochOver)[-1].first for worker in (1, 2, 3)] == [1, 1, 1]


def test_status_names_who_is_waited_for():
    desk = Desk("sync", 3)
    assert desk.coordinator.status().waiting_for == ()
    desk.push(1)
    assert desk.coordinator.status().waiting_for == (0, 2)
