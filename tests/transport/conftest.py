"""What several modules of tests of the transports start from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from paceline.transport.keys import write_key_file


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "job.key"
    write_key_file(path)
    return path


@contextmanager
def _forked_child() -> Iterator[None]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        yield
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


@pytest.fixture
def forked_child() -> Callable[[], AbstractContextManager[None]]:
    """Fork a child that outlives, inside, the parent's connections, which it must not keep alive."""
    return _forked_child
