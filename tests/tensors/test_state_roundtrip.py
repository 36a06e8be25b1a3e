"""What shards save joins to torch's own state, and what they load goes on bitwise."""

import pytest
import torch
from torch import nn, optim

from paceline.errors import ProtocolError, UsageError
from paceline.tensors.state import Gathered, assemble, pack, state_of, unpack
from sharded import Job, Matrix

torch.set_num_threads(1)

OPTIMIZERS = {
    "sgd": lambda params: optim.SGD(params, lr=0.05, momentum=0.9),
    "adamw": lambda params: optim.AdamW(params, lr=0.01, amsgrad=True),
    "adagrad": lambda params: optim.Adagrad(params, lr=0.05),
    "rmsprop": lambda params: optim.RMSprop(params, lr=0.01, centered=True),
    "nadam": lambda params: optim.NAdam(params, lr=0.01),
    "asgd": lambda params: optim.ASGD(params, lr=0.05),
    "adafactor": lambda params: optim.Adafactor(params, lr=0.01),
    "matrix": Matrix,
}


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Module()
    model.scale = nn.Parameter(torch.tensor(1.5))
    model.layers = nn.Sequential(nn.Linear(13, 17), nn.Linear(17, 11), nn.Linear(11, 3)).to(dtype)
    model.constant = nn.Parameter(torch.randn(5))
    return model


def job_of(name: str, num_shards: int, dtype: torch.dtype = torch.float32) -> Job:
    model = net(dtype)
    return Job(model, OPTIMIZERS[name]([model.scale, *model.layers.parameters()]), num_shards, window_bytes=256)


def noise(job: Job, seed: int, absent: tuple[int, ...] = ()) -> list[torch.Tensor | None]:
    torch.manual_seed(seed)
    specs = job.spec.parameters
    drawn = [torch.randn(spec.shape).to(getattr(torch, spec.dtype)) for spec in specs]
    return [None if spec.group < 0 or index in absent else value for index, (spec, value) in enumerate(zip(specs, drawn, strict=True))]


def gather(job: Job, *, optimizer: bool = True) -> Gathered:
    return assemble(job.spec, len(job.shards), [shard.save(optimizer=optimizer) for shard in job.shards])


def load(job: Job, gathered: Gathered) -> None:
    packed = pack(job.spec, gathered.parameters, gathered.state)
    for shard in job.shards:
        shard.load(memoryview(packed), parameters=True, optimizer=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loaded_run_goes_on_bitwise(name, before, after, dtype):
    job, other = job_of(name, before, dtype), job_of(name, after, dtype)
    for step in range(4):
        job.update([noise(job, step, absent=(2, 3) if step < 2 else ())])
        other.update([noise(job, 100 + step)])
    load(other, gather(job))
    for step in range(4):
        for one in (job, other):
            one.update([noise(job, 10 + step, absent=(1,) if step == 2 else ())])
    start, stop = 0, job.layout.trainable_bytes
    if job.spec.elementwise:
        assert torch.equal(job.memory[start:stop], other.memory[start:stop])
    else:
        assert all(torch.equal(job.views[index], other.views[index]) for index in job.views)


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_laid_out_as_torch_lays_it_out(name, num_shards):
    job = job_of(name, num_shards)
    model = net()
    optimizer = OPTIMIZERS[name]([model.scale, *model.layers.parameters()])
    parameters = [model.scale, *model.layers.parameters()]
    for step in range(3):
        gradients = noise(job, step, absent=(2,) if step < 2 else ())
        job.update([gradients])
        for parameter, gradient in zip(parameters, gradients, strict=False):
            parameter.grad = gradient
        optimizer.step()
    gathered = gather(job)
    theirs = state_of(optimizer)
    assert list(gathered.parameters) == list(range(len(parameters)))
    assert list(gathered.state) == list(theirs)
    for index, state in theirs.items():
        assert gathered.state[index].keys() == state.keys()
        for key, value in state.items():
            ours = gathered.state[index][key]
            if isinstance(value, torch.Tensor):
                assert ours.shape == value.shape
                assert torch.allclose(ours, value, rtol=1e-4, atol=1e-7)
            else:
                assert (type(ours), ours) == (type(value), value)
    optimizer.load_state_dict({"state": gathered.state, "param_groups": optimizer.state_dict()["param_groups"]})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_begins_with_the_state_of_a_plain_optimizer(name):
    model = net()
    parameters = [model.scale, *model.layers.parameters()]
    optimizer = OPTIMIZERS[name](parameters)
    job = job_of(name, 1)
    for step in range(3):
        for parameter, gradient in zip(parameters, noise(job, step, absent=(0,) if step == 0 else ()), strict=False):
            parameter.grad = gradient
        optimizer.step()
    resumed = Job(model, OPTIMIZERS[name](parameters), num_shards=2, window_bytes=256)
    for shard in resumed.shards:
        shard.load(pack(resumed.spec, None, state_of(optimizer)), parameters=False, optimizer=True)
    for step in range(3):
        gradients = noise(job, 10 + step)
        resumed.update([gradients])
        for parameter, gradient in zip(parameters, gradients, strict=False):
            parameter.grad = gradient
        optimizer.step()
    assert resumed.distance(model) < 1e-5


def test_counters_of_older_checkpoints_are_plain_numbers():
    job, other = job_of("adamw", 2), job_of("adamw", 2)
    for one in (job, other):
        one.update([noise(job, 0)])
    gathered = gather(job)
    for state in gathered.state.values():
        state["step"] = int(state["step"])
    load(other, gathered)
    for one in (job, other):
        one.update([noise(job, 1)])
    assert torch.equal(job.memory, other.memory)


def test_without_optimizer_only_parameters_are_saved():
    job = job_of("adamw", 2)
    job.update([noise(job, 0)])
    gathered = gather(job, optimizer=False)
    assert gathered.state == {}
    assert all(torch.equal(value, job.views[index]) for index, value in gathered.parameters.items())


def test_loading_parameters_keeps_the_optimizers_state_and_reaches_constants():
    job, other = job_of("sgd", 2), job_of("sgd", 2)
    for one in (job, other):
        one.update([noise(job, 0)])
    values = {index: torch.randn_like(view) for index, view in job.views.items()}
    for index, view in job.views.items():
        view.copy_(values[index])
    packed = pack(other.spec, values, None)
    for shard in other.shards:
        shard.load(packed, parameters=True, optimizer=False)
    for one in (job, other):
        one.update([noise(job, 1)])
    assert all(torch.equal(job.views[index], other.views[index]) for index in values)


def test_a_state_survives_packing():
    job = job_of("matrix", 1)
    job.update([noise(job, 0)])
    gathered = gather(job)
    again = unpack(pack(job.spec, gathered.parameters, gathered.state))
    assert again.state.keys() == gathered.state.keys()
    assert all(torch.equal(again.parameters[index], value) for index, value in gathered.parameters.items())
    assert again.state[1]["calls"] == 1
    assert torch.equal(again.state[1]["momentum"], gathered.state[1]["momentum"])


def test_a_parameter_of_another_shape_is_refused():
    job = job_of("sgd", 1)
    with pytest.raises(UsageError, match=r"the loaded scale has shape \[2\], but the parameter has \[\]"):
        pack(job.spec, {0: torch.zeros(2)}, None)
    with pytest.raises(UsageError, match=r"optimizer state momentum_buffer of layers.0.weight is \[2\]"):
        job.shards[0].load(pack(job.spec, None, {1: {"momentum_buffer": torch.zeros(2)}}), parameters=False, optimizer=True)


def test_state_that_is_neither_tensor_nor_number_is_refused():
    job = job_of("matrix", 1)
    with pytest.raises(UsageError, match=r"'history' of parameter 1 is a list"):
        pack(job.spec, None, {1: {"history": [1, 2]}})


@pytest.mark.parametrize("data", [b"", b"\x00" * 8, b"\x80\x04K\x01.", b"x" * 100])
def test_bytes_that_are_no_state_are_refused(data):
    with pytest.raises(ProtocolError, match="no state of a run"):
        unpack(data)
