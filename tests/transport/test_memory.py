"""Memory files: shared, of a fixed size, and only ours are mapped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.errors import ProtocolError
from paceline.transport import memory


def test_two_maps_of_one_file_are_the_same_memory() -> None:
    fd = memory.create("arena", 8192)
    one, two = memory.map_shared(fd), memory.map_shared(fd, 8192)
    os.close(fd)
    one[8191] = 7
    assert two[8191] == 7
    assert len(two) == 8192


def test_a_memory_file_cannot_change_its_size() -> None:
    fd = memory.create("arena", 4096)
    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    os.close(fd)


def test_what_is_too_small_is_refused_with_both_sizes() -> None:
    fd = memory.create("arena", 4096)
    with pytest.raises(ProtocolError, match="4096 bytes of memory, 4097 are needed"):
        memory.map_shared(fd, 4097)
    os.close(fd)


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="got 0"):
        memory.create("arena", 0)


def test_what_is_no_sealed_memory_file_is_refused(tmp_path: Path) -> None:
    unsealed = os.memfd_create("unsealed")
    with (tmp_path / "file").open("wb") as file:
        for fd in (file.fileno(), unsealed):
            with pytest.raises(ProtocolError, match="not a sealed memory file"):
                memory.map_shared(fd)
    os.close(unsealed)


def test_data_is_read_back_whole_up_to_a_bound() -> None:
    fd = memory.create_from("message", memoryview(b"abc" * 1000))
    assert memory.read_all(fd, at_most=3000) == b"abc" * 1000
    with pytest.raises(ProtocolError, match="3000 bytes, at most 2999"):
        memory.read_all(fd, at_most=2999)
    os.close(fd)


def test_empty_data_is_read_back_empty() -> None:
    fd = memory.create_from("message", b"")
    assert memory.read_all(fd, at_most=0) == b""
    os.close(fd)
