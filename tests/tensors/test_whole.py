"""A shard of everything in a worker of a group, whose sums may fail half way."""

from __future__ import annotations

import torch
from torch import nn, optim

from paceline.messages import Member
from paceline.tensors.state import unpack
from paceline.tensors.whole import WholeShard
from sharded import Job


def whole_of(job: Job, worker: int) -> WholeShard:
    return WholeShard(job.spec, job.memory.clone(), worker, job.arenas[worker])


def met() -> tuple[Job, list[torch.Tensor], WholeShard]:
    """Worker 0's shard in a group of two, and the gradient that lies in its arena."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    job = Job(model, optim.SGD(model.parameters(), lr=0.5), num_workers=2)
    gradients = [torch.randn(spec.shape) for spec in job.spec.parameters]
    job.write(0, gradients)
    shard = whole_of(job, 0)
    shard.meet((0, 1))
    return job, gradients, shard


def fill(shard: WholeShard, gradients: list[torch.Tensor], weight: float) -> None:
    """As the worker's gradients are brought into what is summed."""
    for place, gradient in zip(shard.places(), gradients, strict=True):
        torch.mul(gradient.flatten(), shard.scaled(weight), out=place)


def assert_stepped(job: Job, gradients: list[torch.Tensor], shard: WholeShard) -> None:
    """The shard has made one step with these alone; the job's own memory is as it was."""
    saved = unpack(shard.save(optimizer=False)).parameters
    for index, gradient in enumerate(gradients):
        assert torch.allclose(saved[index].view(gradient.shape), job.views[index] - 0.5 * gradient)


def test_what_a_lost_member_had_summed_is_forgotten_by_the_one_that_is_left() -> None:
    job, gradients, shard = met()
    fill(shard, gradients, 1.0)
    for bucket in range(len(shard.spans)):
        shard.summed(bucket).add_(7.0)  # the other one's share, of which nobody knows who else has it
    shard.filled()
    shard.meet((0,))
    shard.reduce((Member(0, 0, 1, 0, 1.0),), 1.0)
    shard.apply(factor=1.0, lr_factor=1.0, hyper=b"", absent=b"")
    assert_stepped(job, gradients, shard)


def test_what_a_broken_group_still_writes_is_in_no_update_of_the_next_one() -> None:
    job, gradients, shard = met()
    fill(shard, gradients, 2.0)
    stuck = shard.summed(0)
    shard.meet((0, 1))
    assert len(shard.spans) == 1
    fill(shard, gradients, 2.0)
    shard.filled()
    stuck.fill_(torch.nan)  # its peer woke up
    shard.reduce((Member(0, 0, 1, 0, 2.0),), 0.5)
    shard.apply(factor=1.0, lr_factor=1.0, hyper=b"", absent=b"")
    assert_stepped(job, gradients, shard)


def test_buckets_are_of_one_group_each_and_leave_as_backward_passes_fill_them() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    matrices = [layer.weight for layer in model]
    groups = [{"params": matrices}, {"params": [layer.bias for layer in model], "weight_decay": 0.0}]
    job = Job(model, optim.AdamW(groups, lr=0.5))
    shard = WholeShard(job.spec, job.memory.clone(), 0, job.arenas[0], bucket_elements=1)
    many = [[slot.index for slot in job.layout.slots if slot.start < high and low < slot.stop] for low, high in shard.spans]
    assert sorted(index for inside in many for index in inside) == list(range(6))
    assert [min(inside) for inside in many] == sorted((min(inside) for inside in many), reverse=True)
    few = WholeShard(job.spec, job.memory.clone(), 0, job.arenas[0]).spans
    assert len(few) == 2  # one for each group, however small


def test_a_value_that_is_not_finite_is_found_by_one_of_the_group() -> None:
    model = nn.Linear(5, 3)
    job = Job(model, optim.SGD(model.parameters(), lr=3e38), num_workers=2)
    found: list[str | None] = []
    for worker in range(2):
        shard = whole_of(job, worker)
        shard.meet((0, 1))
        shard.summed(0).fill_(3e38)
        shard.filled()
        shard.reduce((Member(0, 0, 1, 0, 1.0),), 1.0)
        shard.apply(factor=1.0, lr_factor=1.0, hyper=b"", absent=b"")
        found.append(shard.find_non_finite())
    assert [name is not None for name in found] == [True, False]


def test_sums_are_of_float32_whatever_the_scripts_default_is() -> None:
    model = nn.Linear(5, 3)
    job = Job(model, optim.SGD(model.parameters(), lr=0.5), num_workers=2)
    torch.set_default_dtype(torch.bfloat16)
    try:
        shard = whole_of(job, 0)
        shard.meet((0, 1))
        assert shard.summed(0).dtype is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_no_optimizer_holds_goes_to_the_servers_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    frozen = model[1].requires_grad_(requires_grad=False)
    job = Job(model, optim.SGD(model[0].parameters(), lr=0.5))
    given = unpack(whole_of(job, 0).save(optimizer=True, buffers=True)).parameters
    names = [spec.name for spec in job.spec.parameters]
    assert torch.equal(given[names.index("1.weight")].view(1, 2), frozen.weight)
    assert set(given) == set(range(len(names)))
