"""What a script holds of its run: one surface, whether it runs alone or with others."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from numbers import Real
from typing import Any, TypeVar, overload

import torch

from paceline.errors import UsageError
from paceline.pace import Pace

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class Run(ABC):
    """A run, as one worker sees it; `paceline.init()` makes it.

    `worker` is this worker's number, from 0 to `num_workers` - 1.
    """

    worker: int
    num_workers: int

    @property
    def is_first(self) -> bool:
        """Whether this worker does what only one should do: the lowest one that was live when an epoch last ended."""
        return self.worker == 0

    @property
    @abstractmethod
    def pace(self) -> Pace:
        """The pace in force."""

    @overload
    def prepare(self, first: A, /) -> A: ...
    @overload
    def prepare(self, first: A, second: B, /) -> tuple[A, B]: ...
    @overload
    def prepare(self, first: A, second: B, third: C, /) -> tuple[A, B, C]: ...
    @overload
    def prepare(self, first: A, second: B, third: C, fourth: D, /) -> tuple[A, B, C, D]: ...
    def prepare(self, *things: Any) -> Any:
        """Make a model, its optimizer, a loader and a scheduler part of the run; returns the same objects in order.

        Loader and scheduler may be left out; a scheduler may also follow in a call of its own, so that it can be
        made with the prepared loader's length. Raises UsageError for what cannot be trained.
        """
        self._prepare(things)
        return things[0] if len(things) == 1 else things

    @abstractmethod
    def _prepare(self, things: tuple[object, ...]) -> None: ...

    @abstractmethod
    def epochs(self, num_epochs: int) -> Iterator[int]:
        """The numbers of the epochs to train, ended early when the run is stopped."""

    @abstractmethod
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip the gradient of the coming update to the 2-norm `max_norm`; returns the norm of this worker's own."""

    @abstractmethod
    def log(self, **metrics: float | torch.Tensor) -> None:
        """Record numbers or 0-dimensional tensors, such as `loss=loss`."""

    @abstractmethod
    def mean(self, x: float | torch.Tensor, n: float | None = None) -> float:
        """The mean of `x` over all workers, by `n`, else by the samples of each in this epoch; all must call it."""

    @abstractmethod
    def pull(self) -> None:
        """Load the newest parameters and averaged buffers into the model, for an evaluation."""

    @abstractmethod
    def stop(self, why: str = "the script asked for it") -> None:
        """End the run early, for all workers."""


def say(sentence: str) -> None:
    """One line for the user, in this worker's log."""
    print(f"paceline: {sentence}", file=sys.stderr, flush=True)


def number_of(value: object, what: str) -> float:
    """`value` as a float. Raises UsageError when it is no number."""
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, torch.Tensor) and value.ndim == 0 and not value.is_complex():
        return float(value.detach())
    shown = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    raise UsageError(f"{what} must be a number or a 0-dimensional tensor, got {shown}")


def checked_norm(max_norm: float) -> float:
    """`max_norm`, when a gradient can be clipped to it, else UsageError."""
    if not max_norm > 0.0:
        raise UsageError(f"run.clip_grad_norm_ needs a max_norm above 0, got {max_norm}")
    return float(max_norm)
