"""A shard whose optimizer works in a copy of the shared memory makes what one makes that works in it, and shows it there."""

from __future__ import annotations

import pytest
import torch

from paceline.errors import ConfigError
from paceline.messages import Member
from paceline.pace import parse_pace
from paceline.tensors.memory import Span
from paceline.tensors.state import assemble
from paceline.tensors.workplace import device_for
from sharded import OPTIMIZERS, Gradients, Job, groups_of, mlp

torch.set_num_threads(1)
REL = 1e-4


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def at(request: pytest.FixtureRequest) -> torch.device:
    """Where the optimizer works apart."""
    return torch.device(request.param)


def jobs(name: str, at: torch.device, *, num_shards: int = 2) -> tuple[Job, Job]:
    """In shared memory, and apart from it."""
    there, apart = (
        Job(mlp(), OPTIMIZERS[name](groups_of(mlp())), num_shards, 2, window_bytes=1024, device=device) for device in (None, at)
    )
    assert there.shards[0]._memory is there.memory
    assert isinstance(apart.shards[0]._memory, Span)
    return there, apart


def assert_alike(there: Job, apart: Job, at: torch.device) -> None:
    """Bit for bit on the CPU; another device has kernels of its own."""
    if at.type == "cpu":
        assert torch.equal(there.memory, apart.memory)
    else:
        torch.testing.assert_close(apart.views, there.views, rtol=REL, atol=REL)


def gradients_of(job: Job, seed: int, *, absent: int | None = None) -> Gradients:
    torch.manual_seed(seed)
    return [None if index == absent else torch.randn(spec.shape) for index, spec in enumerate(job.spec.parameters)]


def train(there: Job, apart: Job, at: torch.device, *, steps: int = 6, first: int = 0) -> None:
    """Updates of every kind, alike: clipped or not, some without a gradient of the first parameter."""
    for step in range(first, first + steps):
        gradients = [gradients_of(there, 2 * step + worker, absent=0 if step % 3 == 1 else None) for worker in range(2)]
        for job in (there, apart):
            job.update(gradients, clip=0.5 * (step % 2))
        assert_alike(there, apart, at)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_that_is_made_apart_is_shown(name: str, at: torch.device) -> None:
    train(*jobs(name, at), at)


def test_what_was_accepted_before_the_fold_counts_too(at: torch.device) -> None:
    both = jobs("adamw", at)
    members = tuple(Member(worker, 0, 0, 0, 0.5, gathered=worker == 0) for worker in range(2))
    for job in both:
        for worker in range(2):
            job.write(worker, gradients_of(job, worker))
        for shard in job.shards:
            shard.gather(members[0])
        job.write(0, gradients_of(job, 99))  # its buffer is free
        job.fold(members)
    assert_alike(*both, at)


@pytest.mark.parametrize("correction", ["dc", "dca", "gap", "bound"])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_stale_gradients_are_corrected_alike(name: str, correction: str, at: torch.device) -> None:
    both = jobs(name, at)
    moved: list[list[float]] = []
    for job in both:
        for shard in job.shards:
            shard.begin(parse_pace(f"async,correction={correction}"))
        job.pull(0)
        job.pull(1)
        for step in range(4):
            job.write(step % 2, gradients_of(job, step))
            for shard in job.shards:
                shard.reduce((Member(step % 2, 0, step, 0, 1.0, staleness=min(step, 1)),), 1.0)
            moved.append([shard.moved() for shard in job.shards])
            for shard in job.shards:
                shard.apply(factor=1.0, lr_factor=1.0, hyper=b"", absent=b"")
            job.pull(step % 2)
    assert_alike(*both, at)
    assert moved[:4] == [pytest.approx(one, rel=0.0 if at.type == "cpu" else REL) for one in moved[4:]]


def test_going_back_is_shown_and_goes_on_alike(at: torch.device) -> None:
    both = jobs("adamw", at)
    train(*both, at)
    before = both[1].memory.clone()
    for job in both:
        for shard in job.shards:
            shard.keep()
    train(*both, at, first=6)
    assert not torch.equal(both[1].memory, before)
    for job in both:
        for shard in job.shards:
            shard.restore()
    assert torch.equal(both[1].memory, before)
    train(*both, at, first=12)


@pytest.mark.parametrize("name", ["adamw", "nadam", "matrix"])
def test_a_state_that_is_loaded_is_shown_and_goes_on_alike(name: str, at: torch.device) -> None:
    there, apart = jobs(name, at)
    train(there, apart, at)
    states = [[shard.save(optimizer=True) for shard in job.shards] for job in (there, apart)]
    assert states[0] == states[1] or at.type != "cpu"
    train(there, apart, at, first=6)
    for job in (there, apart):
        for shard in job.shards:
            shard.take(assemble(job.spec, len(states[0]), states[0]), parameters=True, optimizer=True)
    assert_alike(there, apart, at)
    train(there, apart, at, first=12)


def test_what_no_optimizer_holds_is_loaded_into_the_shared_memory(at: torch.device) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    job = Job(model, optimizer, device=at)
    shard = job.shards[0]
    state = shard.save(optimizer=False, buffers=True)
    before = job.memory.clone()
    job.memory.zero_()
    shard.load(state, parameters=True, optimizer=False)
    assert torch.equal(job.memory, before)


def test_the_followers_of_an_update_get_what_was_shown(at: torch.device) -> None:
    _, apart = jobs("sgd", at, num_shards=1)
    shard = apart.shards[0]
    shard.on_window = lambda done: shard.follow(0, 0) if done < 2000 else None
    apart.update([gradients_of(apart, worker) for worker in range(2)])
    shard.copy_out(0, 0, buffers=False)  # it has followed: nothing is left to copy
    shard.copy_out(1, 0, buffers=False)
    peers = shard._peers
    assert torch.equal(peers[0, 0].parameters, peers[1, 0].parameters)


@pytest.mark.parametrize(
    ("name", "kind", "count", "server", "found"),
    [
        ("cpu", None, 0, 0, None),
        ("cuda", "cuda", 2, 0, "cuda:0"),
        ("cuda", "cuda", 2, 3, "cuda:1"),
        ("cuda:1", "cuda", 2, 4, "cuda:1"),
    ],
)
def test_servers_take_the_device_that_is_named_or_one_after_the_other(
    name: str, kind: str | None, count: int, server: int, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, kind, count)
    device = device_for(name, server)
    assert device == (None if found is None else torch.device(found))


@pytest.mark.parametrize(
    ("name", "kind", "count", "there"),
    [
        ("cuda", None, 0, "cpu, for torch finds no accelerator"),
        ("cuda:2", "cuda", 2, "cpu or cuda:0 to cuda:1"),
        ("xpu", "cuda", 1, "cpu or cuda:0 to cuda:0"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    name: str, kind: str | None, count: int, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, kind, count)
    with pytest.raises(ConfigError, match=f"^--server-device {name} is not on this machine; allowed here: {there}$"):
        device_for(name, 0)


def pretend(monkeypatch: pytest.MonkeyPatch, kind: str | None, count: int) -> None:
    """Let torch find so many accelerators."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(kind) if kind else None)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
