"""A shard goes back to what it kept, bit by bit, whatever happened since; momentum after a change of pace; what an update did."""

import copy

import pytest
import torch
from torch import nn, optim

from paceline.errors import ProtocolError
from paceline.messages import Member
from paceline.pace import parse_pace
from paceline.tensors.state import pack, unpack
from sharded import Job, Matrix, hyper_of

torch.set_num_threads(1)

OPTIMIZERS = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda parameters: optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "nadam": lambda parameters: optim.NAdam(parameters, lr=0.01),
    "asgd": lambda parameters: optim.ASGD(parameters, lr=0.01),
    "matrix": Matrix,
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.BatchNorm1d(9), nn.Linear(9, 3))


def job_of(optimizer: str = "sgd", dtype: torch.dtype = torch.float32, num_shards: int = 2) -> Job:
    model = net()
    model[0].to(dtype)
    return Job(model, OPTIMIZERS[optimizer](model.parameters()), num_shards, 2, window_bytes=128)


def noise(job: Job, seed: int, *, without: tuple[int, ...] = ()) -> list[torch.Tensor | None]:
    torch.manual_seed(seed)
    drawn = [torch.randn(spec.shape).to(getattr(torch, spec.dtype)) for spec in job.spec.parameters]
    return [None if index in without else one for index, one in enumerate(drawn)]


def update(job: Job, seed: int, *, without: tuple[int, ...] = (), measure: bool = False) -> list:
    absent = job.write(0, noise(job, seed, without=without))
    members = (Member(0, 0, seed, 0, 1.0),)
    for shard in job.shards:
        shard.reduce(members, 1.0)
    return [shard.apply(factor=1.0, lr_factor=1.0, hyper=b"", absent=absent, measure=measure) for shard in job.shards]


def state(job: Job) -> list[bytes]:
    return [shard.save(optimizer=True) for shard in job.shards]


def kept_tensors(job: Job) -> list[int]:
    """Their identities."""
    return [id(one) for shard in job.shards for parts in shard._kept._parts for part in parts for one in part.state.values()]


def each(job: Job, method: str) -> list:
    return [getattr(shard, method)() for shard in job.shards]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_shard_goes_back_bitwise_also_after_parts_were_split_and_begun(optimizer, dtype):
    job = job_of(optimizer, dtype)
    for seed in range(3):
        update(job, seed, without=(4, 5))
    there = state(job)
    each(job, "keep")
    update(job, 3)
    update(job, 4, without=(0, 3))
    assert state(job) != there
    each(job, "restore")
    assert state(job) == there
    update(job, 5)
    onward = state(job)
    each(job, "restore")
    assert state(job) == there
    update(job, 5)
    assert state(job) == onward


@pytest.mark.parametrize("idle_windows", [0, 1, 1000])
def test_a_state_that_is_kept_while_nothing_waits_is_the_same(idle_windows):
    job = job_of()
    update(job, 0)
    there = state(job)
    each(job, "keep")
    left = [True]
    for _ in range(idle_windows):
        left = each(job, "idle")
    assert any(left) is (idle_windows < 1000)
    update(job, 1)
    assert not any(each(job, "idle"))
    each(job, "restore")
    assert state(job) == there


def test_the_state_kept_last_counts_and_its_memory_is_used_again():
    job = job_of("adamw")
    update(job, 0)
    each(job, "keep")
    update(job, 1)
    places = kept_tensors(job)
    there = state(job)
    each(job, "keep")
    update(job, 2)
    assert kept_tensors(job) == places
    each(job, "restore")
    assert state(job) == there


def test_a_parameter_without_a_state_when_it_was_kept_has_none_again():
    job = job_of()
    each(job, "keep")
    update(job, 0)
    each(job, "restore")
    update(job, 1)
    fresh = job_of()
    update(fresh, 1)
    assert state(job) == state(fresh)


def test_a_loaded_state_does_not_change_what_was_kept_before_it():
    job = job_of()
    update(job, 0)
    there = state(job)
    each(job, "keep")
    other = job_of(num_shards=1)
    update(other, 7)
    whole = unpack(other.shards[0].save(optimizer=False))
    parameters = {index: values.view(job.spec.parameters[index].shape) for index, values in whole.parameters.items()}
    for shard in job.shards:
        shard.load(pack(job.spec, parameters, {}), parameters=True, optimizer=True)
    assert state(job) != there
    each(job, "restore")
    assert state(job) == there


def test_what_was_gathered_and_the_workers_buffers_are_forgotten():
    job, other = job_of(), job_of()
    for one in (job, other):
        one.arenas[0].fill_(0)
        update(one, 0)
        each(one, "keep")
    means = job.memory[job.layout.parameter_bytes :].clone()
    job.write(1, noise(job, 9), buffer=1)
    for shard in job.shards:
        shard.take_buffers(Member(1, 0, 0, 1, 1.0, buffer_samples=4))
        shard.gather(Member(1, 0, 0, 1, 2.0))
    each(job, "restore")
    assert torch.equal(job.memory[job.layout.parameter_bytes :], means)
    for one in (job, other):
        update(one, 1)
    assert state(job) == state(other)


def test_settings_are_not_kept():
    job = job_of()
    update(job, 0)
    each(job, "keep")
    optimizer = OPTIMIZERS["sgd"](net().parameters())
    optimizer.param_groups[0]["lr"] = 0.5
    job.fold((Member(0, 0, 1, 0, 1.0),), hyper=hyper_of(optimizer))
    each(job, "restore")
    assert job.shards[0]._stepper._groups[0]["lr"] == 0.5


def test_nothing_kept_is_nothing_to_go_back_to():
    with pytest.raises(ProtocolError, match="never kept"):
        each(job_of(), "restore")


# --- the size of an update --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_measured_update_tells_what_plain_torch_finds(dtype):
    job = job_of("adamw", dtype)
    update(job, 0)
    before = {index: values.double().clone() for index, values in job.views.items()}
    gradients = noise(job, 1, without=(3,))
    parts = update(job, 1, without=(3,), measure=True)
    gradient, parameters, change = (sum(part[k] for part in parts) for k in range(3))
    assert gradient == pytest.approx(sum(float(one.double().square().sum()) for one in gradients if one is not None), rel=1e-5)
    assert parameters == pytest.approx(sum(float(one.square().sum()) for one in before.values()), rel=1e-5)
    moved = sum(float((job.views[index].double() - one).square().sum()) for index, one in before.items())
    assert change == pytest.approx(moved, rel=1e-5)
    assert update(job, 2) == [None, None]


def test_a_measured_update_is_the_same_update():
    measured, plain = job_of(), job_of()
    for seed in range(3):
        update(measured, seed, measure=True)
        update(plain, seed)
    assert state(measured) == state(plain)


# --- momentum ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("optimizer", "key"), [("sgd", "momentum_buffer"), ("adamw", "exp_avg"), ("nadam", "exp_avg")])
def test_zero_sets_the_momentum_and_nothing_else_to_zero(optimizer, key):
    model = net()
    ours = OPTIMIZERS[optimizer](model.parameters())
    job = Job(model, ours, 2, 1, window_bytes=128)
    for seed in range(4):
        if seed == 2:
            for shard in job.shards:
                shard.set_pace(parse_pace("async,momentum=zero"))
            for one in ours.state.values():
                one[key].zero_()
        for parameter, gradient in zip(model.parameters(), noise(job, seed), strict=True):
            parameter.grad = gradient
        ours.step()
        update(job, seed)
    assert job.distance(model) < 1e-6


def test_what_was_kept_has_the_momentum_that_is_set_to_zero_afterwards():
    job = job_of()
    update(job, 0)
    there = state(job)
    each(job, "keep")
    for shard in job.shards:
        shard.set_pace(parse_pace("async,momentum=zero"))
    assert state(job) != there
    each(job, "restore")
    assert state(job) == there


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_ramp_begins_at_a_quarter_and_ends_at_the_users_momentum(optimizer):
    model = net()
    ours = OPTIMIZERS[optimizer](model.parameters())
    job = Job(model, ours, 2, 1, window_bytes=128)
    own = copy.deepcopy({key: ours.param_groups[0][key] for key in ("momentum", "betas") if key in ours.param_groups[0]})
    for shard in job.shards:
        shard.set_pace(parse_pace("async,momentum=ramp"), ramp_updates=3)
    for seed, factor in enumerate([0.25, 0.5, 0.75, 1.0, 1.0]):
        group = ours.param_groups[0]
        if "momentum" in own:
            group["momentum"] = own["momentum"] * factor
        else:
            group["betas"] = (own["betas"][0] * factor, own["betas"][1])
        for parameter, gradient in zip(model.parameters(), noise(job, seed), strict=True):
            parameter.grad = gradient
        ours.step()
        update(job, seed)
        assert job.distance(model) < 1e-6
    assert {key: job.shards[0]._stepper._groups[0][key] for key in own} == own


def test_the_next_change_of_pace_ends_a_ramp():
    job, plain = job_of(), job_of()
    for shard in job.shards:
        shard.set_pace(parse_pace("async,momentum=ramp"))
        shard.set_pace(parse_pace("sync"))
    for one in (job, plain):
        update(one, 0)
        update(one, 1)
    assert state(job) == state(plain)
