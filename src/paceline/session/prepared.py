"""What a script hands to `run.prepare`, told apart by kind."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from paceline.errors import UsageError


class Prepared(NamedTuple):
    """A model and its optimizer, and what goes with them; a scheduler may come alone, later."""

    model: nn.Module | None = None
    optimizer: Optimizer | None = None
    loader: DataLoader[Any] | None = None
    scheduler: Any = None


def sort_out(things: tuple[object, ...], *, again: bool) -> Prepared:
    """The things by kind, whatever their order. Raises UsageError for what cannot be prepared, or not `again`."""
    found: dict[str, object] = {}
    for thing in things:
        kind = _kind_of(thing)
        if kind in found and found[kind] is not thing:
            raise UsageError(f"run.prepare was given two {kind}s; one {kind} is supported, so put all parameters into one")
        found[kind] = thing
    if again and set(found) != {"scheduler"}:
        raise UsageError("run.prepare was called a second time; give it model, optimizer and loader at once (a scheduler may follow alone)")
    if not again and not {"model", "optimizer"} <= set(found):
        missing = " and ".join(kind for kind in ("model", "optimizer") if kind not in found)
        raise UsageError(f"run.prepare needs a model and its optimizer, the {missing} is missing")
    return Prepared(**found)  # type: ignore[arg-type]


def _kind_of(thing: object) -> str:
    if isinstance(thing, nn.Module):
        return "model"
    if isinstance(thing, Optimizer):
        return "optimizer"
    if isinstance(thing, DataLoader):
        return "loader"
    if isinstance(thing, LRScheduler) or (hasattr(thing, "step") and hasattr(thing, "optimizer")):
        return "scheduler"
    raise UsageError(
        f"run.prepare was given a {type(thing).__name__}; it takes an nn.Module, its torch.optim optimizer, "
        "a torch.utils.data.DataLoader and a learning rate scheduler"
    )
