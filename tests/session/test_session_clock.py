"""Time in a session: the scheduler on the run's clock, what a worker computes and waits, and how it is slowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR

from paceline.config import read_recorded
from paceline.errors import ConfigError
from paceline.session.meter import Meter, Spent
from paceline.session.schedule import Clock, follow
from paceline.session.slow import Handicap
from paceline.settings import Slow


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


class Now:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.updates, self.in_loop, self.s, self.cpu_s = 0, True, 0.0, 0.0

    def read(self) -> Clock:
        return Clock(self.updates, self.in_loop)


def test_inside_the_loop_a_scheduler_moves_with_the_run() -> None:
    now, opt = Now(), optimizer()
    scheduler = OneCycleLR(opt, max_lr=1.0, total_steps=10)
    keys = set(scheduler.state_dict())
    follow(scheduler, now.read)
    seen = []
    for updates in (1, 1, 4, 9, 9):
        now.updates = updates
        opt.step()
        scheduler.step()
        seen.append(scheduler.last_epoch)
    assert seen == [1, 1, 4, 9, 9]
    assert isinstance(scheduler, OneCycleLR)
    assert type(scheduler).__name__ == "OneCycleLR"
    assert set(scheduler.state_dict()) == keys


def test_before_an_epochs_first_batch_a_scheduler_that_ticks_in_the_loop_catches_up() -> None:
    now, opt = Now(), optimizer()
    scheduler = OneCycleLR(opt, max_lr=1.0, total_steps=10)
    catch_up = follow(scheduler, now.read)
    now.updates = 2
    catch_up()
    assert scheduler.last_epoch == 0
    opt.step()
    scheduler.step()
    now.updates = 5
    catch_up()
    assert scheduler.last_epoch == 5


def test_between_epochs_a_scheduler_ticks_once_a_call_and_a_late_joiner_catches_up() -> None:
    now, opt = Now(), optimizer()
    now.in_loop, now.updates = False, 500
    scheduler = StepLR(opt, 1, 0.5)
    follow(scheduler, now.read, late_epochs=2)
    opt.step()
    scheduler.step()
    assert scheduler.last_epoch == 3
    scheduler.step()
    assert scheduler.last_epoch == 4


def test_a_plateau_scheduler_gets_its_metric() -> None:
    now, opt = Now(), optimizer()
    scheduler = ReduceLROnPlateau(opt, patience=0)
    follow(scheduler, now.read)
    for loss in (1.0, 2.0):
        scheduler.step(loss)
    assert isinstance(scheduler, LRScheduler)
    assert opt.param_groups[0]["lr"] == pytest.approx(0.1)


def test_the_exchange_is_the_part_of_a_wait_after_the_leave_to_go_on() -> None:
    now = Now()
    meter = Meter(lambda: now.s, lambda: now.cpu_s)
    for let_go_s in (2.0, None, 24.0):
        with meter.waiting():
            if let_go_s is not None:
                now.s = let_go_s
                meter.let_go()
            now.s += 3.0
    assert meter.take() == Spent(compute_s=0.0, wait_s=27.0, cpu_s=0.0, exchange_s=6.0)
    assert meter.take() == Spent(0.0, 0.0, 0.0)


def test_computing_and_waiting_are_told_apart() -> None:
    now = Now()
    meter = Meter(lambda: now.s, lambda: now.cpu_s)
    now.s = 5.0
    meter.begin()
    now.s, now.cpu_s = 7.0, 1.5
    with meter.waiting():
        now.s, now.cpu_s = 10.0, 1.75
    now.s, now.cpu_s = 11.0, 2.0
    assert meter.spent() == Spent(compute_s=3.0, wait_s=3.0, cpu_s=1.75)
    meter.end()
    now.s = 50.0
    assert meter.take() == Spent(compute_s=3.0, wait_s=3.0, cpu_s=1.75)
    assert meter.take() == Spent(0.0, 0.0, 0.0)


def test_a_slow_worker_sleeps_for_its_processor_time_in_its_part_of_the_work() -> None:
    handicap = Handicap(1, [Slow(1, 4.0, 0.25, 0.5), Slow(0, 9.0)])
    pauses = [handicap.pause_s(0, share, cpu_s=0.1, compute_s=9.0) for share in (0.0, 0.25, 0.4, 0.6)]
    assert pauses == pytest.approx([0.0, 0.3, 0.3, 0.0])


def test_a_recorded_step_lasts_as_long_as_it_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "times"
    path.write_text("0.1\n0.2\n0.3\n")
    times_s = read_recorded(str(path))
    path.write_text("[0.1, 0.2, 0.3]")
    assert read_recorded(str(path)) == times_s == [0.1, 0.2, 0.3]
    handicap = Handicap(0, [Slow(0, 2.0)], times_s)
    assert handicap.pause_s(4, 0.0, cpu_s=0.0, compute_s=0.15) == pytest.approx(0.25)
    assert handicap.pause_s(4, 0.0, cpu_s=0.0, compute_s=0.05, part=0.5) == pytest.approx(0.15)
    assert handicap.pause_s(3, 0.0, cpu_s=0.0, compute_s=0.5) == 0.0
    assert (handicap.num_overrun, handicap.overrun_s) == (1, pytest.approx(0.3))


@pytest.mark.parametrize("text", ["", "fast", "[0.1, null]", "-1.0", "nan"])
def test_a_record_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "times"
    path.write_text(text)
    with pytest.raises(ConfigError, match="must hold"):
        read_recorded(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_recorded(str(tmp_path / "none"))
