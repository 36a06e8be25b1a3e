"""What a shard does with memory: accumulates, copies, averages buffers, finds what is not finite, refuses."""

import inspect

import pytest
import torch
from torch import nn, optim

from paceline.errors import ProtocolError, UsageError
from paceline.logic.partition import arena_map, layout_of, parameter_arena_bytes
from paceline.messages import Member
from paceline.tensors.optimizer import ELEMENTWISE
from paceline.tensors.shard import Shard
from paceline.tensors.spec import spec_of
from paceline.tensors.storage import tensor_at
from sharded import Job, Matrix

torch.set_num_threads(1)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.BatchNorm1d(9), nn.Linear(9, 3))


def job_of(num_shards: int = 2, num_workers: int = 3, dtype: torch.dtype = torch.float32) -> Job:
    model = net()
    model[0].to(dtype)
    return Job(model, optim.SGD(model.parameters(), lr=0.5, momentum=0.9), num_shards, num_workers, window_bytes=128)


def noise(job: Job, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(spec.shape).to(getattr(torch, spec.dtype)) for spec in job.spec.parameters]


def values(job: Job) -> torch.Tensor:
    return job.memory[: job.layout.trainable_bytes].clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_accepted_one_by_one_make_the_same_update(dtype):
    at_once, one_by_one = job_of(dtype=dtype), job_of(dtype=dtype)
    weights = (8.0, 4.0, 2.0)
    for update in range(3):
        for worker in range(3):
            at_once.write(worker, noise(at_once, 10 * update + worker))
        at_once.fold(tuple(Member(worker, 0, update, 0, weight) for worker, weight in enumerate(weights)), scale=0.125)
        for worker, weight in enumerate(weights):
            one_by_one.write(worker, noise(at_once, 10 * update + worker), buffer=1)
            for shard in one_by_one.shards:
                shard.gather(Member(worker, 0, update, 1, weight))
            one_by_one.write(worker, noise(at_once, 99), buffer=1)
        members = tuple(Member(worker, 0, update, 1, weight, gathered=True) for worker, weight in enumerate(weights))
        one_by_one.fold(members, scale=0.125)
    assert torch.equal(values(at_once), values(one_by_one))


def test_a_fold_may_mix_accepted_and_waiting_gradients():
    mixed, plain = job_of(), job_of()
    for job in (mixed, plain):
        for worker in range(3):
            job.write(worker, noise(job, worker))
    for shard in mixed.shards:
        shard.gather(Member(1, 0, 0, 0, 2.0))
    mixed.fold((Member(1, 0, 0, 0, 2.0, gathered=True), Member(0, 0, 0, 0, 1.0), Member(2, 0, 0, 0, 1.0)), scale=0.25)
    plain.fold((Member(1, 0, 0, 0, 2.0), Member(0, 0, 0, 0, 1.0), Member(2, 0, 0, 0, 1.0)), scale=0.25)
    assert torch.equal(values(mixed), values(plain))


def test_an_accumulator_begins_empty_after_every_update():
    job, other = job_of(), job_of()
    for one in (job, other):
        one.write(0, noise(one, 0))
    for update in range(2):
        for shard in job.shards:
            shard.gather(Member(0, 0, update, 0, 1.0))
        job.fold((Member(0, 0, update, 0, 1.0, gathered=True),))
        other.fold((Member(0, 0, update, 0, 1.0),))
    assert torch.equal(values(job), values(other))


@pytest.mark.parametrize("cls", [Matrix, optim.Adafactor, *sorted(ELEMENTWISE, key=lambda cls: cls.__name__)])
@pytest.mark.parametrize("maximize", [False, True])
def test_gradients_in_an_arena_are_only_read(cls, maximize):
    decays = "weight_decay" in inspect.signature(cls).parameters
    settings = {} if cls is Matrix else {"maximize": maximize, **({"weight_decay": 0.1} if decays else {})}
    model = net()
    job = Job(model, cls(model.parameters(), lr=0.1, **settings), 2, 2)
    for worker in range(2):
        job.write(worker, noise(job, worker))
    before = [arena.clone() for arena in job.arenas]
    for _ in range(3):
        job.fold((Member(0, 0, 0, 0, 1.0),))
    job.fold((Member(0, 0, 0, 0, 1.0),), clip=0.01)
    job.fold((Member(0, 0, 1, 0, 0.5), Member(1, 0, 1, 0, 0.5)), clip=0.01)
    assert all(torch.equal(now, then) for now, then in zip(job.arenas, before, strict=True))


@pytest.mark.parametrize("members", [1, 3])
def test_the_norm_is_that_of_all_shards_together(members):
    job = job_of(num_shards=3)
    gradients = [noise(job, worker) for worker in range(members)]
    for worker, one in enumerate(gradients):
        job.write(worker, one)
    for shard in job.shards:
        shard.reduce(tuple(Member(worker, 0, 0, 0, 1 / members) for worker in range(members)), 1.0)
    square = sum(shard.square_norm() for shard in job.shards)
    expected = sum(float((sum(parts) / members).double().square().sum()) for parts in zip(*gradients, strict=True))
    assert square == pytest.approx(expected, rel=1e-6)


def test_a_copy_holds_the_shards_parameters_and_nothing_else():
    job = job_of()
    places = arena_map(job.layout)
    job.shards[1].copy_out(2, 0, buffers=True)
    ours = job.arenas[2][places.parameters :][: job.layout.trainable_bytes]
    border = int((ours != 0).nonzero()[0])
    assert border > 0
    job.shards[0].copy_out(2, 0, buffers=True)
    assert torch.equal(ours, values(job))
    assert not job.arenas[0].any()


def buffers_at(job: Job, memory: torch.Tensor, start: int) -> dict[str, torch.Tensor]:
    return {slot.spec.name: tensor_at(memory, start + slot.start, slot.spec) for slot in job.layout.buffers}


def send_buffers(job: Job, worker: int, mean: float, tracked: int, samples: int) -> None:
    buffers = buffers_at(job, job.arenas[worker], arena_map(job.layout).buffers[1])
    buffers["1.running_mean"].fill_(mean)
    buffers["1.num_batches_tracked"].fill_(tracked)
    for shard in job.shards:
        shard.take_buffers(Member(worker, 0, 0, 1, 1.0, buffer_samples=samples))


def test_buffers_are_averaged_by_samples_and_integers_take_the_maximum():
    job = job_of()
    start, _ = parameter_arena_bytes(job.layout)
    mean = buffers_at(job, job.memory, start)
    send_buffers(job, 0, mean=1.0, tracked=5, samples=10)
    assert mean["1.running_mean"].unique().tolist() == [1.0]
    send_buffers(job, 1, mean=4.0, tracked=3, samples=20)
    assert mean["1.running_mean"].unique().tolist() == [3.0]
    assert int(mean["1.num_batches_tracked"]) == 5
    send_buffers(job, 1, mean=1.0, tracked=7, samples=30)
    assert mean["1.running_mean"].unique().tolist() == [1.0]
    assert int(mean["1.num_batches_tracked"]) == 7
    job.shards[0].copy_out(2, 0, buffers=True)
    copied = buffers_at(job, job.arenas[2], arena_map(job.layout).mean_buffers)
    assert all(torch.equal(copied[name], mean[name]) for name in mean)


def test_a_worker_that_is_gone_leaves_the_means_with_the_next_contribution():
    job = job_of()
    mean = buffers_at(job, job.memory, parameter_arena_bytes(job.layout)[0])["1.running_mean"]
    send_buffers(job, 0, mean=1.0, tracked=1, samples=10)
    send_buffers(job, 1, mean=3.0, tracked=1, samples=10)
    job.shards[0].detach(0, 0)
    assert mean.unique().tolist() == [2.0]
    send_buffers(job, 1, mean=5.0, tracked=1, samples=10)
    assert mean.unique().tolist() == [5.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_parameter_that_is_not_finite_is_named(bad):
    job = job_of()
    job.write(0, noise(job, 0))
    job.fold((Member(0, 0, 0, 0, 1.0),))
    assert [shard.find_non_finite() for shard in job.shards] == [None, None]
    gradients = noise(job, 1)
    gradients[4][1, 2] = bad
    job.write(0, gradients)
    job.fold((Member(0, 0, 0, 0, 1.0),))
    assert [shard.find_non_finite() for shard in job.shards] in ([None, "2.weight"], ["2.weight", None])


def test_values_whose_sum_overflows_are_finite():
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, 3e38)
    job = Job(model, optim.SGD(model.parameters(), lr=0.0))
    job.write(0, noise(job, 0))
    job.fold((Member(0, 0, 0, 0, 1.0),))
    assert job.shards[0].find_non_finite() is None


def test_more_shards_than_memory_leave_some_empty():
    model = nn.Linear(2, 1)
    job = Job(model, optim.Adam(model.parameters()), num_shards=4)
    job.write(0, [torch.ones(1, 2), torch.ones(1)])
    job.fold((Member(0, 0, 0, 0, 1.0),), clip=1.0)
    assert [shard.find_non_finite() for shard in job.shards] == [None] * 4
    for shard in job.shards:
        shard.copy_out(0, 0, buffers=True)
        shard.load(shard.save(optimizer=True), parameters=False, optimizer=False)


def test_scalars_and_empty_parameters_are_trained():
    model = nn.Module()
    model.scale = nn.Parameter(torch.tensor(2.0))
    model.none = nn.Parameter(torch.zeros(0, 3))
    model.bias = nn.Parameter(torch.zeros(3))
    job = Job(model, optim.Adam(model.parameters(), lr=0.1), num_shards=2)
    job.write(0, [torch.tensor(1.0), torch.zeros(0, 3), torch.ones(3)])
    job.fold((Member(0, 0, 0, 0, 1.0),))
    assert job.views[0] == pytest.approx(1.9)
    assert job.views[2].tolist() == pytest.approx([-0.1] * 3)


def test_what_the_order_cannot_mean_is_refused():
    job = job_of()
    with pytest.raises(ProtocolError, match=r"worker 7 .* has no arena"):
        job.shards[0].reduce((Member(7, 0, 0, 0, 1.0),), 1.0)
    with pytest.raises(ProtocolError, match="accepted before"):
        job.shards[0].reduce((Member(0, 0, 0, 0, 1.0, gathered=True),), 1.0)
    job.shards[0].detach(0, 0)
    with pytest.raises(ProtocolError, match=r"worker 0 .* has no arena"):
        job.shards[0].copy_out(0, 0, buffers=False)
    with pytest.raises(ProtocolError, match="arena of worker 0 must be at least"):
        job.shards[0].attach(0, 1, torch.zeros(64, dtype=torch.uint8))


def test_what_the_optimizer_raises_is_told_as_its_own():
    model = net()
    job = Job(model, optim.SparseAdam(model.parameters()), 1, 1)
    job.write(0, noise(job, 0))
    with pytest.raises(
        UsageError, match=r"^the optimizer torch\.optim\.\w+:SparseAdam raised RuntimeError in step\(\): SparseAdam does not"
    ):
        job.fold((Member(0, 0, 0, 0, 1.0),))


def test_memory_that_is_too_small_is_refused():
    model = net()
    spec = spec_of(model, optim.SGD(model.parameters()))
    _, size = parameter_arena_bytes(layout_of(spec))
    with pytest.raises(ProtocolError, match="parameter arena must be at least"):
        Shard(spec, 0, 1, torch.zeros(size - 1, dtype=torch.uint8))


@pytest.mark.parametrize("first_window", [1, 3])
def test_who_follows_an_update_has_it_all_when_it_is_made_and_is_not_copied_to_again(first_window):
    job = job_of(num_shards=1)
    (shard,) = job.shards
    heard: list[int] = []

    def follow(done: int) -> None:
        heard.append(done)
        if len(heard) == first_window:
            shard.follow(1, 0)

    shard.on_window = follow
    place = job.arenas[1][arena_map(job.layout).parameters :][: job.layout.trainable_bytes]
    job.write(0, noise(job, 1))
    job.fold((Member(0, 0, 0, 0, 1.0),))
    assert torch.equal(place, values(job))
    assert heard == sorted(set(heard))
    assert len(heard) > first_window
    assert heard[-1] == job.layout.trainable_bytes
    place.zero_()
    shard.copy_out(1, 0, buffers=False)
    assert not place.any()
    # that was for one answer, and a later update is another
    shard.copy_out(1, 0, buffers=False)
    assert torch.equal(place, values(job))
    heard.clear()
    job.fold((Member(0, 0, 0, 0, 1.0),))
    shard.on_window = None
    job.fold((Member(0, 0, 0, 0, 1.0),))
    shard.copy_out(1, 0, buffers=False)
    assert torch.equal(place, values(job))
