"""Under plain `python` a script with paceline in it is plain PyTorch, bit for bit, and misuse is told all the same."""

from __future__ import annotations

import copy
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.config import resolve
from paceline.errors import ConfigError, UsageError
from paceline.session import in_force
from paceline.session.run import Run


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("paceline.session._run", None)
    return paceline.init()


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader, torch.optim.lr_scheduler.LRScheduler]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
    return model, optimizer, DataLoader(data, batch_size=8, shuffle=True), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)


def test_a_run_alone_is_bitwise_plain_torch(run: Run) -> None:
    model, optimizer, loader, scheduler = parts()
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
    plain = model.state_dict()

    given = parts()
    model, optimizer, loader, scheduler = run.prepare(*given)
    assert all(ours is theirs for ours, theirs in zip((model, optimizer, loader, scheduler), given, strict=True))
    for _ in run.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            run.clip_grad_norm_(0.5)
            optimizer.step()
            scheduler.step()
            run.log(loss=loss)
        run.pull()
    assert all(torch.equal(value, plain[name]) for name, value in model.state_dict().items())


def test_a_run_alone_is_worker_0_of_1_and_ends_when_it_is_stopped(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert (run.worker, run.num_workers, run.is_first, run.pace.name) == (0, 1, True, "sync")
    assert run.mean(torch.tensor(2.5)) == 2.5
    seen = []
    for epoch in run.epochs(10):
        seen.append(epoch)
        run.log(loss=torch.tensor(0.5), accuracy=1)
        if epoch == 1:
            run.stop("good enough")
    assert seen == [0, 1]
    assert "epoch 1: loss 0.5, accuracy 1" in capsys.readouterr().err


def test_what_is_logged_alone_is_said_once_also_behind_the_last_epoch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_end: list[partial[None]] = []
    monkeypatch.setattr("atexit.register", lambda call, *told: at_end.append(partial(call, *told)))
    monkeypatch.setattr("paceline.session._run", None)
    run = paceline.init()
    for _ in run.epochs(1):
        run.log(loss=0.5)
    run.log(error=0.25)
    capsys.readouterr()
    for _ in range(2):
        at_end[-1]()
    assert capsys.readouterr().err == "paceline: at the end: loss 0.5, error 0.25\n"


def test_a_second_init_is_refused(run: Run) -> None:
    with pytest.raises(UsageError, match="second time"):
        paceline.init()


def test_settings_are_checked_also_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.session._run", None)
    with pytest.raises(ConfigError, match="pace"):
        paceline.init(pace="nonsense")
    with pytest.raises(ConfigError, match="did you mean seed"):
        paceline.init(sead=3)
    assert paceline.init(pace="ksync:3", seed=3).pace.name == "ksync:3"


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ((0,), "the optimizer is missing"),
        ((1, 2), "the model is missing"),
        ((0, 1, 1, 4), "given a dict"),
        ((0, 1, 5), "two optimizers"),
    ],
)
def test_prepare_says_what_it_takes(run: Run, chosen: tuple[int, ...], sentence: str) -> None:
    model, optimizer, loader, scheduler = parts()
    things = (model, optimizer, loader, scheduler, {}, torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(UsageError, match=sentence):
        run.prepare(*(things[index] for index in chosen))


def test_a_second_prepare_is_refused_but_for_a_scheduler(run: Run) -> None:
    model, optimizer, loader, scheduler = parts()
    run.prepare(model, optimizer, loader)
    assert run.prepare(scheduler) is scheduler
    with pytest.raises(UsageError, match="second time"):
        run.prepare(model, copy.deepcopy(optimizer))


@pytest.mark.parametrize("value", ["high", torch.ones(2), None])
def test_only_numbers_are_logged(run: Run, value: object) -> None:
    with pytest.raises(UsageError, match=r"run.log\(loss=...\) must be a number"):
        run.log(loss=value)  # type: ignore[arg-type]


def test_importing_paceline_does_not_import_torch() -> None:
    code = "import sys, paceline; assert paceline.Pace and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("wish", "stored"), [({"pace": "async"}, "async"), ({"seed": 5}, 5), ({"leases": "static"}, "static"), ({"seed": None}, 0)]
)
def test_under_an_engine_a_script_may_wish_for_what_workers_decide(wish: dict[str, object], stored: object) -> None:
    settings = in_force(resolve(cores=2, stamp=""), wish)
    (name,) = wish
    assert (settings.pace.name if name == "pace" else getattr(settings, name)) == stored


def test_under_an_engine_the_command_line_beats_the_script_and_some_wishes_come_too_late() -> None:
    resolved = resolve(cores=2, stamp="", command_line={"seed": 1, "pace": "ssp:3"})
    assert in_force(resolved, {"seed": 5, "pace": "async", "workers": 2}) == resolved.settings
    with pytest.raises(ConfigError, match=r"init\(workers=8\) comes too late.*give --workers"):
        in_force(resolved, {"workers": 8})
    with pytest.raises(ConfigError, match=r"init\(sead=...\) is not a setting"):
        in_force(resolved, {"sead": 5})
