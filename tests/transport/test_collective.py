"""A group of workers by itself: what it sums with, and where."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from paceline.transport import collective
from paceline.transport.collective import NO_NCCL, Group, GroupError, Seat, backend_for, convene, device_name


def groups_of(size: int, on: torch.device = collective.CPU, timeout_s: float = 20.0) -> list[Group]:
    """A group of this process's own threads."""
    store, port = convene("127.0.0.1")

    def member(rank: int) -> Group:
        return Group(Seat(1, rank, size, "127.0.0.1"), None if rank else store, ("127.0.0.1", port), timeout_s=timeout_s, on=on)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(member, range(size)))


@pytest.mark.parametrize(
    ("names", "backend", "why"),
    [
        (["", "", ""], "gloo", ""),
        (["GPU-1", "GPU-2"], "nccl", ""),
        (["GPU-1", "GPU-2", "GPU-1"], "gloo", "some of its workers share a GPU"),
        (["GPU-1", ""], "gloo", "only some of its workers' models are on a GPU"),
        ([NO_NCCL, NO_NCCL], "gloo", "torch was built without NCCL"),
    ],
)
def test_nccl_sums_where_each_member_has_a_gpu_of_its_own_and_else_gloo_says_why(names: list[str], backend: str, why: str) -> None:
    assert backend_for(names) == (backend, why)


def test_a_gpu_under_a_torch_without_nccl_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: pytest.fail("nobody needs to know which one it is"))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert [device_name(torch.device(name)) for name in ("cpu", "cuda:0")] == ["", NO_NCCL]


def test_members_that_share_a_gpu_sum_on_the_cpu_and_know_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "device_name", lambda _: "GPU-1")
    groups = groups_of(2)
    try:
        assert [(group.device.type, group.remark) for group in groups] == [("cpu", "some of its workers share a GPU")] * 2
        parts = [torch.arange(4.0), torch.ones(4)]
        addings = [group.begin(part) for group, part in zip(groups, parts, strict=True)]
        for group, adding in zip(groups, addings, strict=True):
            group.finish([adding])
        assert all(torch.equal(part, torch.arange(4.0) + 1) for part in parts)
    finally:
        for group in groups:
            group.close()


def test_a_member_that_does_not_come_is_found_out_by_the_time_limit() -> None:
    groups = groups_of(2, timeout_s=0.3)
    try:
        with pytest.raises(GroupError, match="worker group 1 could not sum: "):
            groups[0].sum([torch.ones(4)])
    finally:
        for group in groups:
            group.close()


@pytest.mark.gpu
def test_nccl_sums_what_lies_on_its_gpu_and_what_does_not() -> None:
    (group,) = groups_of(1, torch.device("cuda", 0))
    try:
        assert (group.device.type, group.remark) == ("cuda", "")
        parts = [torch.arange(4.0, device="cuda:0"), torch.arange(4.0)]
        group.sum(parts)
        assert [part.tolist() for part in parts] == [[0.0, 1.0, 2.0, 3.0]] * 2
        assert [other.tolist() for other in group.gather(torch.ones(2))] == [[1.0, 1.0]]
    finally:
        group.close()
