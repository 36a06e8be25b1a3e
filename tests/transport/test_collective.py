"""A group of workers by itself: what it sums with, and where."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from launch import environment
from paceline.transport import collective
from paceline.transport.collective import NO_NCCL, Group, GroupError, Seat, backend_for, convene, device_name

ENDING = """
import atexit
from concurrent.futures import ThreadPoolExecutor
from paceline.transport.collective import Group, Seat, convene
store, port = convene("127.0.0.1")
member = lambda rank: Group(Seat(1, rank, 2, "127.0.0.1"), None if rank else store, ("127.0.0.1", port), timeout_s=20.0)
with ThreadPoolExecutor(2) as threads:
    groups = list(threads.map(member, range(2)))
atexit.register(groups[0].close)
"""


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


def test_who_waits_for_a_sum_stops_to_as_soon_as_it_is_called_off() -> None:
    groups = groups_of(2)
    try:
        groups[0]._called_off = lambda: True
        start_s = time.monotonic()
        with pytest.raises(GroupError, match="worker group 1 could not sum: it was called off"):
            groups[0].sum([torch.ones(4)])
        assert time.monotonic() - start_s < 10.0
    finally:
        for group in groups:
            group.close()


def test_a_group_is_let_go_of_at_once_with_what_is_stuck_in_it() -> None:
    groups = groups_of(2)
    # more than a group has threads for
    stuck = [groups[0].begin(torch.ones(4), ahead_s=60.0) for _ in range(9)]
    start_s = time.monotonic()
    groups[0].close()
    assert time.monotonic() - start_s < 10.0
    assert all(adding.work.is_completed() for adding in stuck)
    groups[1].close()


def test_a_group_that_is_let_go_of_while_python_ends_spoils_no_end() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60.0, check=False, env=environment())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("is_called_off", [False, True])
def test_a_store_that_never_answers_keeps_nobody(is_called_off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes connections for a process that has stopped."""
    monkeypatch.setattr(collective, "STORE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()[:2]
        why = "it was called off" if is_called_off else "it took longer than 1.3 s"
        with pytest.raises(GroupError, match=f"worker group 1 could not meet: {why}"):
            Group(Seat(1, 1, 2, "127.0.0.1"), None, address, timeout_s=0.3, called_off=lambda: is_called_off)
        for thread in [thread for thread in threading.enumerate() if thread.name.startswith("paceline")]:
            thread.join(20.0)
            assert not thread.is_alive()


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
