"""Published numbers, reproduced: the roles on a timeline do what the theory of the paces says."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.virtual.trainee import workload
from virtually import IDEAL, play, timed

LEARNERS = 30
WARM_UP = 3
"""Steps of each learner that are left out: all begin at once, which is no steady state."""


def stalenesses(n: int, service: str, steps: int) -> list[int]:
    """Of every gradient under n-softsync, from the updates of the run."""
    found: list[int] = []

    def watch(event: dict[str, Any], _: float) -> None:
        if event["event"] == "update":
            found.extend(member["staleness"] for member in event["members"] if member["step"] >= WARM_UP)

    work = workload(4, steps * LEARNERS, num_workers=LEARNERS)
    outcome = timed(f"softsync:{n}", work, f"{IDEAL}\n[[workers]]\ncompute = 1.0\n{service}", num_workers=LEARNERS, watch=watch)
    assert outcome.end.code == 0
    return found


# Zhang, Gupta, Lian, Liu: Staleness-aware Async-SGD (2016), fig. 1: 30 learners, service time N(1, 0.05); measured
# again in a simulation of its own. The means hold for exponential service too, with P(tau > 2n) as given.
@pytest.mark.parametrize(("n", "mean"), [(1, 0.97), (15, 14.50), (30, 29.00)])
def test_the_staleness_of_softsync_is_that_of_the_paper(n: int, mean: float) -> None:
    taus = stalenesses(n, 'factor = "normal"\nspread = 0.05', steps=200)
    assert sum(taus) / len(taus) == pytest.approx(mean, rel=0.02)
    assert max(taus) <= 2 * n


@pytest.mark.parametrize(("n", "mean", "tail"), [(1, 0.97, 0.081), (15, 14.50, 0.125), (30, 29.00, 0.126)])
def test_exponential_service_has_the_same_mean_and_a_tail(n: int, mean: float, tail: float) -> None:
    taus = stalenesses(n, 'factor = "exponential"', steps=700)
    assert sum(taus) / len(taus) == pytest.approx(mean, rel=0.02)
    assert sum(tau > 2 * n for tau in taus) / len(taus) == pytest.approx(tail, abs=0.01)


@pytest.mark.parametrize("pace", ["softsync:30", "async"])
def test_the_first_round_of_every_epoch_moves_no_further_than_one_update_of_sync(pace: str) -> None:
    """All workers begin at once then, so their gradients are of the same parameters; the weights of one round add up to about 1."""
    taken: dict[int, float] = {}

    def watch(event: dict[str, Any], _: float) -> None:
        if event["event"] == "update":
            for member in event["members"]:
                read = event["version"] - 1 - member["staleness"]
                taken[read] = taken.get(read, 0.0) + member["weight"]

    work = workload(4, 6 * LEARNERS, num_epochs=3, num_workers=LEARNERS)
    outcome = timed(pace, work, f'{IDEAL}[[workers]]\ncompute = 1.0\nfactor = "exponential"', num_workers=LEARNERS, watch=watch)
    assert outcome.end.code == 0
    assert max(taken.values()) < 1.1


WORKERS = 8
UPDATES = 2000


def time_per_update(pace: str, k: int, cancel: str) -> float:
    """Mean time between updates, with service times Exp(1)."""
    times_s: list[float] = []

    def watch(event: dict[str, Any], now_s: float) -> None:
        if event["event"] == "update":
            times_s.append(now_s)

    cluster = f'{IDEAL}\n[[workers]]\ncompute = 1.0\nfactor = "exponential"\ncancel = "{cancel}"'
    outcome = timed(f"{pace}:{k}", workload(4, UPDATES * k, num_workers=WORKERS), cluster, num_workers=WORKERS, watch=watch)
    assert outcome.end.code == 0
    # the last updates have fewer to wait for: the batches are nearly used up
    kept = times_s[: UPDATES - WORKERS]
    return (kept[-1] - kept[0]) / (len(kept) - 1)


def harmonic(n: int, power: int = 1) -> float:
    return sum(1.0 / i**power for i in range(1, n + 1))


# Dutta, Joshi, Ghosh, Dube, Nagpurkar: Slow and Stale Gradients Can Win the Race (2018): P = 8, service Exp(1).
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_ksync_takes_the_time_of_the_kth_of_eight(k: int) -> None:
    mean = harmonic(WORKERS) - harmonic(WORKERS - k)
    deviation = math.sqrt(harmonic(WORKERS, 2) - harmonic(WORKERS - k, 2))
    assert time_per_update("ksync", k, "at once") == pytest.approx(mean, abs=3 * deviation / math.sqrt(UPDATES))


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_kbatchasync_takes_the_time_of_k_arrivals(k: int) -> None:
    deviation = math.sqrt(k) / WORKERS
    assert time_per_update("kbatchasync", k, "at step end") == pytest.approx(k / WORKERS, abs=3 * deviation / math.sqrt(UPDATES))


@pytest.mark.parametrize(("k", "time_s"), [(1, 0.403), (2, 0.635), (4, 1.03), (8, 2.72)])
def test_a_step_that_cannot_be_interrupted_makes_ksync_slower(k: int, time_s: float) -> None:
    assert time_per_update("ksync", k, "at step end") == pytest.approx(time_s, rel=0.04)


DIGITS = """
import torch, paceline
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits), random_state=0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(x, y), 4, shuffle=True)
run = paceline.init()
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(60):
    for images, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
run.pull()
if run.is_first:
    run.log(error=(model(x_test).argmax(1) != y_test).float().mean())
"""


def error_on_digits(pace: str, folder: Path) -> float:
    cluster = IDEAL + '[[workers]]\ncompute = 1.0\nfactor = "normal"\nspread = 0.05'
    return play(folder, DIGITS, cluster, pace=pace, workers=LEARNERS, leases="exact").summary["final"]["error"]


# The same paper, fig. 3: without a smaller learning rate staleness ruins the training, with eta0 / n it costs nothing.
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_learning_rate_divided_by_the_staleness_saves_softsync(tmp_path: Path) -> None:
    sync = error_on_digits("sync", tmp_path / "sync")
    assert sync < 0.04
    assert error_on_digits("softsync:30,weighting=none,lr_rule=none", tmp_path / "unmodified") > 0.5
    for n in (1, 2, 15, 30):
        assert error_on_digits(f"softsync:{n},weighting=none,lr_rule=linear", tmp_path / str(n)) == pytest.approx(sync, abs=0.01)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("num_servers", "steps_per_s"), [(1, 5000), (8, 2000)])
def test_a_thousand_workers_are_timed_at_thousands_of_steps_a_second(num_servers: int, steps_per_s: int) -> None:
    """Half of what a core of this project's machine makes when it has nothing else to do."""
    cluster = '[[workers]]\nfactor = "lognormal"\nspread = 0.05'
    work, start_s = workload(400_000, 100_000, num_workers=1000), time.process_time()
    outcome = timed("async", work, cluster, num_workers=1000, num_servers=num_servers)
    assert outcome.end.code == 0
    assert outcome.summary["updates"] / (time.process_time() - start_s) > steps_per_s  # type: ignore[operator]
