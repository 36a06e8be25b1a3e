"""What every test has: one thread for torch, no settings of the caller's, hypothesis without a clock, and a watch on what it does."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from audited import nothing_forbidden, watched_programs

__all__ = ["nothing_forbidden", "watched_programs"]

os.environ.setdefault("OMP_NUM_THREADS", "1")

# Programs that tests start, each with arguments of its own: looking for doctests would run them.
collect_ignore = ["scripts", "site"]

# A deadline would make a slow machine a failure; a derandomized run makes a failure everybody's.
settings.register_profile("paceline", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("paceline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # what has a time limit of its own takes long: at the end nobody could take it over from the process that has it
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch  # not for every test: it takes seconds

        if not torch.cuda.is_available():
            pytest.skip("torch finds no CUDA device here")


@pytest.fixture(autouse=True)
def without_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PACELINE_")]:
        monkeypatch.delenv(name)
