"""A session as a worker: against the real roles and shards in one thread, without sleeping."""

from __future__ import annotations

import copy
import io
from collections.abc import Generator, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from inprocess import PAUSE, Job
from paceline.errors import UsageError
from paceline.logic.partition import arena_map, layout_of
from paceline.messages import Address, Draw, Drawn, Enter, EpochOver, Hello, Message, ModelSpec, Ready
from paceline.roles.effects import Effect
from paceline.roles.talk import Gradient
from paceline.roles.worker import WorkerRole
from paceline.session.batches import batch_list
from paceline.session.joined import Joined
from paceline.session.loader import fetching
from paceline.session.run import Run
from paceline.tensors.spec import spec_of
from paceline.transport import memory
from replicas import pretend


@pytest.fixture(autouse=True, params=["on the cpu", "on a device"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where models are: on a device copies are made between them and shared memory."""
    if request.param == "on a device":
        pretend(monkeypatch)
    return request.param


class Numbers(Dataset):
    """Item i is i, as a row."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


class Stream(IterableDataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((4,), float(index)) for index in range(self.size))


def model_of() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.BatchNorm1d(3, momentum=0.3), nn.Linear(3, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def join(job: Job, *things: Any) -> Run:
    run = Joined(job.link, job.resolved.settings, "")
    run.prepare(*things)
    return run


def backward(model: nn.Module, x: torch.Tensor) -> None:
    (model(torch.sin(x * torch.arange(1.0, 5.0))) - 1.0).square().mean().backward()


def train(run: Run, model: nn.Module, opt: torch.optim.Optimizer, loader: DataLoader, num_epochs: int) -> list[list[int]]:
    """Train; returns each batch as the numbers in it."""
    seen: list[list[int]] = []
    for _ in run.epochs(num_epochs):
        for x in loader:
            seen.append(x[:, 0].int().tolist())
            opt.zero_grad()
            backward(model, x)
            opt.step()
    return seen


# --- parity -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_servers", [1, 3])
@pytest.mark.parametrize("pace", ["sync", "async,weighting=none", "ssp:2"])
def test_one_worker_trains_what_plain_torch_trains(pace: str, num_servers: int) -> None:
    model, opt = model_of()
    for _ in range(2):
        for x in DataLoader(Numbers(22), batch_size=4):
            opt.zero_grad()
            backward(model, x)
            opt.step()
    job = Job(1, num_servers, pace=pace)
    ours, our_opt = model_of()
    loader = DataLoader(Numbers(22), batch_size=4)
    run = join(job, ours, our_opt, loader)
    assert train(run, ours, our_opt, loader, 2) == [list(range(at, min(at + 4, 22))) for at in range(0, 24, 4) if at < 22] * 2
    saved, state = ours.state_dict(), our_opt.state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(saved[name], value, rtol=1e-5, atol=1e-6)
    plain = opt.state_dict()
    assert state["param_groups"] == plain["param_groups"]
    assert state["state"].keys() == plain["state"].keys()
    for index, slots in plain["state"].items():
        assert state["state"][index].keys() == slots.keys()
        for key, value in slots.items():
            torch.testing.assert_close(state["state"][index][key], value, rtol=1e-5, atol=1e-6)
    assert job.samples() == (44, 0, 0)


def test_the_gradient_is_clipped_as_torch_clips_it() -> None:
    model, opt = model_of()
    norms = []
    for x in DataLoader(Numbers(12), batch_size=4):
        opt.zero_grad()
        backward(model, x)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        opt.step()
    ours, our_opt = model_of()
    loader = DataLoader(Numbers(12), batch_size=4)
    run = join(Job(1, 2), ours, our_opt, loader)
    for x in loader:
        our_opt.zero_grad()
        backward(ours, x)
        torch.testing.assert_close(run.clip_grad_norm_(0.1), norms.pop(0), rtol=1e-4, atol=1e-6)
        our_opt.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-6)


# --- what was prepared stays what it is ------------------------------------------------------------------


def test_prepared_objects_keep_their_kind_and_copies_are_plain() -> None:
    model, opt = model_of()
    loader = DataLoader(Numbers(10), batch_size=4, shuffle=True)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1)
    keys = model.state_dict().keys()
    run = Joined((job := Job()).link, job.resolved.settings, "")
    assert run.prepare(model, opt, loader, scheduler) == (model, opt, loader, scheduler)
    assert isinstance(model, nn.Sequential)
    assert isinstance(loader, DataLoader)
    assert type(opt) is torch.optim.Adam
    assert (type(model).__name__, type(loader).__name__) == ("Sequential", "DataLoader")
    assert (len(loader), model.state_dict().keys()) == (3, keys)
    twin = copy.deepcopy(model)
    assert type(twin) is nn.Sequential
    twin.load_state_dict({name: torch.zeros_like(value) for name, value in twin.state_dict().items()})
    assert model.state_dict()["0.weight"].any()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is nn.Sequential


def test_a_loaded_state_is_the_runs() -> None:
    model, opt = model_of()
    loader = DataLoader(Numbers(8), batch_size=4)
    run = join(Job(1, 2), model, opt, loader)
    train(run, model, opt, loader, 1)
    saved, state = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
    for x in loader:
        backward(model, x)
        opt.step()
    changed = model.state_dict()
    assert not torch.equal(changed["0.weight"], saved["0.weight"])
    model.load_state_dict(saved)
    opt.load_state_dict(state)
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    loaded = opt.state_dict()["state"]
    assert all(torch.equal(loaded[index][key], value) for index, slots in state["state"].items() for key, value in slots.items())
    assert train(run, model, opt, loader, 1)


# --- the loop ---------------------------------------------------------------------------------------------


def test_a_loader_with_processes_gives_every_sample_once() -> None:
    model, opt = model_of()
    loader = DataLoader(Numbers(30), batch_size=3, shuffle=True, num_workers=2)
    job = Job()
    run = join(job, model, opt, loader)
    seen = train(run, model, opt, loader, 2)
    assert sorted(chain(*seen[:10])) == sorted(chain(*seen[10:])) == list(range(30))
    assert seen[:10] != seen[10:]
    assert job.samples() == (60, 0, 0)


def test_a_loader_fetches_with_all_settings_of_the_users() -> None:
    def negated(items: list[torch.Tensor]) -> torch.Tensor:
        return -torch.stack(items)

    given: dict[str, Any] = {"collate_fn": negated, "pin_memory": True, "num_workers": 2, "timeout": 20, "worker_init_fn": print}
    given |= {"persistent_workers": True, "prefetch_factor": 3, "multiprocessing_context": "forkserver"}
    loader = DataLoader(Numbers(10), batch_size=4, **given)
    ours = fetching(loader, 0, sampler=[[1]])
    assert {name: getattr(ours, name) for name in given} == {name: getattr(loader, name) for name in given}
    model, opt = model_of()
    loader = DataLoader(Numbers(10), batch_size=4, collate_fn=negated)
    assert train(join(Job(), model, opt, loader), model, opt, loader, 1) == [[0, -1, -2, -3], [-4, -5, -6, -7], [-8, -9]]


def test_accumulated_batches_are_one_step_and_what_is_left_over_is_skipped_and_said() -> None:
    model, opt = model_of()
    loader = DataLoader(Numbers(10), batch_size=2)
    job = Job()
    run = join(job, model, opt, loader)
    for _ in run.epochs(2):
        for i, x in enumerate(loader):
            backward(model, x)
            if i % 2:
                opt.step()
                opt.zero_grad()
        opt.zero_grad()
    assert job.samples() == (16, 0, 4)
    assert len(job.updates()) == 4
    assert all("mid-accumulation" in sentence for sentence in job.warnings)


def test_a_loop_left_early_gives_back_its_samples_and_the_next_epoch_is_whole() -> None:
    model, opt = model_of()
    loader = DataLoader(Numbers(12), batch_size=2)
    job = Job()
    run = join(job, model, opt, loader)
    for epoch in run.epochs(2):
        for i, x in enumerate(loader):
            opt.zero_grad()
            backward(model, x)
            opt.step()
            if epoch == 0 and i == 2:
                break
    assert job.samples() == (6 + 12, 0, 6)


def test_loops_need_no_epochs_around_them_and_step_hooks_are_called() -> None:
    model, opt = model_of()
    loader = DataLoader(Numbers(6), batch_size=2)
    job = Job()
    called: list[str] = []
    opt.register_step_pre_hook(lambda *_: called.append("before"))
    join(job, model, opt, loader)
    opt.register_step_post_hook(lambda *_: called.append("after"))
    for _ in range(3):
        for x in loader:
            backward(model, x)
            opt.step()
    assert job.samples() == (18, 0, 0)
    assert called == ["before", "after"] * 9


def test_what_a_script_must_not_do_is_told() -> None:
    model, opt = model_of()
    loader = DataLoader(Numbers(8), batch_size=2)
    run = Joined((job := Job()).link, job.resolved.settings, "")
    with pytest.raises(UsageError, match=r"run.prepare\(model, opt, loader\)"):
        run.pull()
    run.prepare(model, opt, loader)
    with pytest.raises(UsageError, match="without a batch"):
        opt.step()
    with pytest.raises(UsageError, match="closure"):
        opt.step(lambda: 0.0)
    with pytest.raises(UsageError, match="second time"):
        run.prepare(model, opt)
    for x in loader:
        with pytest.raises(UsageError, match="without a gradient"):
            opt.step()
        with pytest.raises(UsageError, match="being iterated already"):
            next(iter(loader))
        backward(model, x)
        with torch.no_grad():
            model[0].weight += 1.0  # type: ignore[index, operator]
        with pytest.raises(UsageError, match=r"parameter 0\.weight was changed"):
            opt.step()
        break


def test_a_loader_that_iterates_its_own_way_is_refused() -> None:
    class Own(DataLoader):
        def __iter__(self):
            yield from ()

    model, opt = model_of()
    with pytest.raises(UsageError, match="Own iterates in a way of its own"):
        join(Job(), model, opt, Own(Numbers(4)))


def test_gradients_clipped_by_the_script_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    model, opt = model_of()
    loader = DataLoader(Numbers(8), batch_size=2)
    run = join(Job(), model, opt, loader)
    for _ in run.epochs(1):
        for x in loader:
            opt.zero_grad()
            backward(model, x)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            opt.step()
    assert capsys.readouterr().err.count("run.clip_grad_norm_") == 1


def test_a_grad_scaler_unscales_before_the_step_also_for_fused_kernels() -> None:
    def trained(prepare: bool) -> nn.Module:
        model, _ = model_of()
        opt, scaler = torch.optim.SGD(model.parameters(), lr=0.01, fused=True), torch.amp.GradScaler("cpu", init_scale=1024.0)
        loader = DataLoader(Numbers(8), batch_size=2)
        if prepare:
            join(Job(), model, opt, loader)
        for x in loader:
            opt.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(opt)
            scaler.update()
        return model

    for ours, plain in zip(trained(True).parameters(), trained(False).parameters(), strict=True):
        torch.testing.assert_close(ours, plain)


def test_what_is_logged_has_its_epoch_and_samples_and_a_stop_ends_the_run() -> None:
    model, opt = model_of()
    loader = DataLoader(Numbers(12), batch_size=4)
    job = Job()
    run = join(job, model, opt, loader)
    epochs = []
    for epoch in run.epochs(5):
        epochs.append(epoch)
        for x in loader:
            opt.zero_grad()
            backward(model, x)
            opt.step()
            run.log(loss=torch.tensor(0.5))
        run.pull()
        run.log(accuracy=0.25 * epoch)
        assert run.mean(2.0) == run.mean(torch.tensor(2.0), n=7) == 2.0
        if epoch == 1:
            run.stop("it is good")
    assert epochs == [0, 1]
    lines = [(line.metrics, line.epoch, line.weight) for line in job.metrics]
    assert lines[0] == ({"loss": 0.5}, 0, 4)
    assert lines[-1] == ({"accuracy": 0.25}, 1, 4)


def test_a_stop_in_the_loop_ends_the_epoch() -> None:
    model, opt = model_of()
    loader = DataLoader(Numbers(40), batch_size=2)
    job = Job()
    run = join(job, model, opt, loader)
    for _ in run.epochs(3):
        for i, x in enumerate(loader):
            opt.zero_grad()
            backward(model, x)
            if i == 3:
                run.stop()
            opt.step()
    assert job.samples() == (8, 0, 32)


def test_a_scheduler_that_was_not_prepared_is_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    told = {}
    for how in ("prepared", "by hand", "forgotten"):
        model, opt = model_of()
        loader = DataLoader(Numbers(12), batch_size=2)
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 1) if how != "by hand" else None
        run = join(Job(), model, opt, loader, *([scheduler] if how == "prepared" else []))
        for x in loader:
            backward(model, x)
            opt.step()
            if scheduler is None:
                opt.param_groups[0]["lr"] *= 0.5
            else:
                scheduler.step()
        told[how] = capsys.readouterr().err.count("moved by a scheduler that run.prepare was not given")
        assert run.worker == 0
    assert told == {"prepared": 0, "by hand": 0, "forgotten": 1}


def test_prepared_schedulers_follow_the_sample_clock() -> None:
    model, opt = model_of()
    loader = DataLoader(Numbers(12), batch_size=2)
    job = Job(2, pace="async", patience="1s")
    run = Joined(job.link, job.resolved.settings, "")
    model, opt, loader = run.prepare(model, opt, loader)
    assert len(loader) == 3
    scheduler = run.prepare(torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=2 * len(loader)))
    for _ in run.epochs(2):
        for x in loader:
            opt.zero_grad()
            backward(model, x)
            opt.step()
            scheduler.step()
    assert scheduler.last_epoch == 6


# --- without a ledger -------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_dataset_is_strided(num_workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    model, opt = model_of()
    loader = DataLoader(Stream(24), batch_size=2, num_workers=num_workers)
    job = Job(3, patience="1s")
    run = join(job, model, opt, loader)
    assert len(loader) == 4
    seen = train(run, model, opt, loader, 2)
    once = 2 if num_workers else 1  # each process of a loader reads the whole stream, as in plain torch
    assert sorted(chain(*seen)) == sorted([*range(0, 24, 3)] * once * 2)
    assert "approximate" in capsys.readouterr().err
    assert job.coordinator.job.accounts.samples == 16 * once


def test_without_a_loader_a_step_counts_one_sample() -> None:
    model, opt = model_of()
    job = Job(pace="async")
    run = join(job, model, opt)
    for _ in run.epochs(2):
        for _ in range(5):
            opt.zero_grad()
            backward(model, torch.randn(6, 4))
            opt.step()
    assert job.coordinator.job.accounts.samples == len(job.updates()) == 10
    with pytest.raises(UsageError, match="without a batch"):
        opt.step()


def test_the_coordinator_hears_of_the_planned_epochs_and_of_what_the_exchange_took() -> None:
    model, opt = model_of()
    model.eval()
    loader = DataLoader(Numbers(8), batch_size=2)
    job = Job(pace="async")
    heard: list[Message] = []
    handle = job.coordinator.handle

    def listening(sender: Address, message: Message, now_s: float) -> list[Effect]:
        heard.append(message)
        return handle(sender, message, now_s)

    job.coordinator.handle = listening  # type: ignore[method-assign]
    run = join(job, model, opt, loader)
    for _ in run.epochs(2):
        for x in loader:
            opt.zero_grad()
            backward(model, x)
            opt.step()
    assert [message.planned for message in heard if isinstance(message, Enter)] == [2, 2]
    readies = [message for message in heard if isinstance(message, Ready)]
    assert len(readies) == 8
    assert all(0.0 < ready.exchange_s <= ready.wait_s for ready in readies)


# --- with another worker ----------------------------------------------------------------------------------


def hoarder(role: WorkerRole, model: ModelSpec) -> Generator[Any, Any, None]:
    """Joins, takes its first leases, sleeps on them, and then computes nothing but zeros."""
    yield from role.join(Hello(role.worker, 0, 1, "here", model))
    arena = memory.create("arena", arena_map(layout_of(model)).size_bytes)
    yield from role.attach(arena)
    yield PAUSE
    answer, _ = yield from role.enter(0, ledger=True)
    if isinstance(answer, Draw):
        batches = [[index] for index in range(40)]
        drawn = batch_list(batches)
        yield from role.drawn(Drawn(0, (1,) * 40, (), 20), drawn.pack())
    over: EpochOver | None = None
    while over is None:
        over = yield from role.lease(0, wait=True)
        while role.held:
            yield PAUSE
            if (yield from role.begin(0)):
                role.take(role.held[0])
                yield from role.step(Gradient(samples=1, norm=0.0))
    yield from role.at_end(over)


def test_what_a_slow_worker_holds_unstarted_is_called_back_for_a_fast_one() -> None:
    model, opt = model_of()
    model.eval()
    loader = DataLoader(Numbers(40), batch_size=1)
    job = Job(2, pace="async")
    job.add_peer(1, spec_of(model, opt), hoarder)
    run = join(job, model, opt, loader)
    job.go_on(1)
    for x in loader:
        opt.zero_grad()
        backward(model, x)
        opt.step()
        if len(job.updates()) == 39:
            job.go_on(1)
    assert run.num_workers == 2
    workers = [*chain(*job.updates())]
    assert workers.count(1) == 1
    assert job.samples() == (40, 0, 0)
