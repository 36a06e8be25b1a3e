"""A run of one, under plain `python`: plain PyTorch, bit for bit. Nothing of the script's is touched."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from paceline.errors import UsageError
from paceline.pace import Pace
from paceline.session.prepared import Prepared, sort_out
from paceline.session.run import Run, checked_norm, number_of, say


class Solo(Run):
    """The script alone; `pace` is what it wished for and means nothing. `last` holds the last value of each metric."""

    def __init__(self, pace: Pace) -> None:
        self.worker, self.num_workers = 0, 1
        self.last: dict[str, float] = {}
        self._pace = pace
        self._prepared: Prepared | None = None
        self._why_stopped = ""
        self._is_news = False

    @property
    def pace(self) -> Pace:
        """The pace that the script named."""
        return self._pace

    def _prepare(self, things: tuple[object, ...]) -> None:
        prepared = sort_out(things, again=self._prepared is not None)
        self._prepared = self._prepared or prepared

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """0 to `num_epochs` - 1; tells the last metrics after each."""
        for epoch in range(num_epochs):
            if self._why_stopped:
                return
            yield epoch
            self.tell(f"epoch {epoch}")

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """`torch.nn.utils.clip_grad_norm_` on the prepared model."""
        if self._prepared is None or self._prepared.model is None:
            raise UsageError("run.clip_grad_norm_ was called before run.prepare")
        return torch.nn.utils.clip_grad_norm_(self._prepared.model.parameters(), checked_norm(max_norm))

    def log(self, **metrics: float | torch.Tensor) -> None:
        """Keep the last value of each."""
        self.last.update({name: number_of(value, f"run.log({name}=...)") for name, value in metrics.items()})
        self._is_news = True

    def tell(self, when: str) -> None:
        """Say the last value of each metric, unless nothing was logged since it was said."""
        if self._is_news:
            self._is_news = False
            say(f"{when}: " + ", ".join(f"{name} {value:.6g}" for name, value in self.last.items()))

    def mean(self, x: float | torch.Tensor, n: float | None = None) -> float:  # noqa: ARG002 - the mean of one
        """`x` itself."""
        return number_of(x, "run.mean(x)")

    def pull(self) -> None:
        """The model holds the newest parameters already."""

    def stop(self, why: str = "the script asked for it") -> None:
        """Let `epochs` end."""
        self._why_stopped = why or "stopped"
