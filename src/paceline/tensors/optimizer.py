"""The user's own optimizer class, found by its name and built again over other tensors.

Only settings travel, never code or objects: the class is imported where it is needed. Fused kernels are switched
on wherever torch has them and the user chose neither `fused` nor `foreach`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, optim

from paceline.errors import UsageError
from paceline.messages import ModelSpec

ELEMENTWISE: frozenset[type[optim.Optimizer]] = frozenset(
    {
        optim.SGD,
        optim.Adam,
        optim.AdamW,
        optim.Adadelta,
        optim.Adagrad,
        optim.RMSprop,
        optim.NAdam,
        optim.RAdam,
        optim.Adamax,
        optim.ASGD,
        optim.Rprop,
    }
)
"""Optimizers that treat every element alone, so that their tensors may be cut anywhere."""

SCALES_GRADIENTS: frozenset[type[optim.Optimizer]] = frozenset({optim.SGD, optim.ASGD})
"""Optimizers whose update is proportional to the gradient's length."""

SCALARS = frozenset({"step", "mu_product", "eta", "mu"})
"""State of the elementwise optimizers that is one number per tensor; all other state has the tensor's shape."""

Settings = dict[str, Any]


def is_elementwise(cls: type) -> bool:
    """Whether tensors of `cls` may be cut anywhere; a subclass may do anything, so it is not."""
    return cls in ELEMENTWISE


def scales_gradients(cls: type) -> bool:
    """Whether twice the gradient means twice the update under `cls`."""
    return cls in SCALES_GRADIENTS


def optimizer_class(path: str) -> type[optim.Optimizer]:
    """The optimizer class at `module:qualname`. Raises UsageError when it cannot be had or used."""
    module, _, name = path.partition(":")
    if module == "__main__":
        raise UsageError(
            f"the optimizer {name} is defined in the script itself, where servers cannot import it; move it to a module of its own"
        )
    try:
        found: object = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise UsageError(f"the optimizer {path} cannot be imported by a server ({type(error).__name__}: {error})") from error
    if not (isinstance(found, type) and issubclass(found, optim.Optimizer)):
        raise UsageError(f"{path} is not an optimizer; allowed is any class that derives from torch.optim.Optimizer")
    closure = inspect.signature(found.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UsageError(f"the optimizer {path} needs a closure in step(), which is not supported")
    return found


def decode_settings(data: bytes) -> list[Settings]:
    """Group settings from msgpack, with tuples where the optimizers want them."""
    return [{key: _tuples(value) for key, value in group.items()} for group in msgspec.msgpack.decode(data, type=list[Settings])]


def _tuples(value: object) -> object:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def runs_torch_step(cls: type[optim.Optimizer]) -> bool:
    """Whether `step` is torch's own, so that it treats parameters one by one and knows torch's kernel flags."""
    return cls.step.__module__.startswith("torch.optim.")


def wants_fused(cls: type[optim.Optimizer], settings: Settings, tensors: list[Tensor]) -> bool:
    """Whether to switch the fused kernel on for a group: the class has one, and the user chose nothing."""
    undecided = settings.get("fused", False) is None and settings.get("foreach") is None
    # The fused SGD of torch 2.13 for the CPU leaves bfloat16 parameters unchanged, or makes them wrong.
    works = all(tensor.dtype is torch.float32 for tensor in tensors) or not issubclass(cls, optim.SGD)
    # Of Adagrad there is none for other devices in the oldest torch that is allowed.
    works = works and (not issubclass(cls, optim.Adagrad) or all(tensor.is_cpu for tensor in tensors))
    return undecided and works and not settings.get("differentiable") and runs_torch_step(cls)


def build_optimizer(model: ModelSpec, tensors: dict[int, list[Tensor]]) -> optim.Optimizer:
    """The model's optimizer over `tensors`, which are listed by group; groups without any are left out.

    Raises UsageError when the class does not accept the settings that its instance showed.
    """
    cls, settings = optimizer_class(model.optimizer), decode_settings(model.groups)
    accepted = inspect.signature(cls).parameters
    defaults = msgspec.msgpack.decode(model.arguments, type=Settings)
    arguments = {key: _tuples(value) for key, value in defaults.items() if key in accepted}
    groups: list[Settings] = []
    for group, members in sorted(tensors.items()):
        fused = {"fused": True} if wants_fused(cls, settings[group], members) else {}
        groups.append({**settings[group], **fused, "params": members})
    build = cast(Callable[..., optim.Optimizer], cls)
    try:
        return build(groups, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"the optimizer {model.optimizer} cannot be built again from its settings: {error}") from error


def update_settings(group: Settings, changed: Settings) -> None:
    """Set what changed in one group of a built optimizer; a choice of kernel that the user left open stays as it was made."""
    group.update({key: value for key, value in changed.items() if key != "fused" or value is not None})


def placed(key: str, value: object, group: Settings, device: torch.device) -> object:
    """A value of the state of a parameter on `device`, where torch keeps it: counters on the CPU, unless a kernel reads them."""
    counts_there = group.get("fused") or group.get("capturable")
    return value.to(device) if isinstance(value, Tensor) and (key != "step" or counts_there) else value


def loaded_scalar(value: object) -> object:
    """A number of an elementwise optimizer's state as these keep it, a float32 tensor; older torch saved plain numbers."""
    return torch.tensor(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value
