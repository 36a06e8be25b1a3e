"""The books of a run: what `summary.json` says of its times, its stalenesses and the metrics of its script."""

from __future__ import annotations

import pytest

from desk import Desk
from paceline.messages import Log
from paceline.roles.accounts import Accounts


def test_stalenesses_are_told_by_mean_median_99th_percentile_and_maximum() -> None:
    books = Accounts()
    assert books.staleness() == {"mean": 0.0, "p50": 0, "p99": 0, "max": 0}
    for taus in ([0] * 50, [1] * 48, [7], [40]):
        books.folded(len(taus), taus, 1.0, pace="async")
    assert books.staleness() == {"mean": pytest.approx(0.95), "p50": 0, "p99": 7, "max": 40}


def test_the_final_value_of_a_metric_is_the_last_one_of_the_lowest_worker_that_lives() -> None:
    desk = Desk("async", 3)
    for worker, accuracy in ((0, 0.5), (1, 0.7), (1, 0.8), (2, 0.9)):
        desk.tell(worker, Log({"accuracy": accuracy}, 0, 4))
    desk.tell(0, Log({"only": 3.0}, 0, 4))
    assert desk.coordinator.summary()["final"] == {"accuracy": 0.5, "only": 3.0}
    desk.lose(0)
    assert desk.coordinator.summary()["final"] == {"accuracy": 0.8, "only": 3.0}


def test_wall_time_runs_from_the_first_lease_to_the_last_update_and_the_start_is_told_apart() -> None:
    desk = Desk("async", 2)
    desk.coordinator.job.started_s -= 3.0
    desk.wait(5.0)
    desk.push(0)
    desk.wait(2.0)
    desk.push(1)
    desk.wait(100.0)
    summary = desk.coordinator.summary()
    assert (summary["start_s"], summary["wall_s"]) == (3.0, 7.0)


def test_compute_and_wait_are_summed_by_worker_and_so_is_what_moves() -> None:
    desk = Desk("async", 2)
    desk.push(0, compute_s=0.5, wait_s=0.125, pulled_bytes=100)
    desk.push(0, compute_s=0.25, wait_s=0.25, pulled_bytes=60)
    desk.push(1, compute_s=2.0, norm=float("nan"))
    summary = desk.coordinator.summary()
    assert summary["per_worker"] == {
        "0": {"samples": 8, "steps": 2, "refused": 0, "compute_s": 0.75, "wait_s": 0.375},
        "1": {"samples": 0, "steps": 1, "refused": 1, "compute_s": 2.0, "wait_s": 0.0},
    }
    assert summary["bytes"] == {"pushed": 3 * desk.coordinator.job.gradient_bytes, "pulled": 160}
