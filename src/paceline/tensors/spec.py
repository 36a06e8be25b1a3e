"""What a script trains, as a `ModelSpec`: parameters in the optimizer's order, then those without an optimizer.

Whatever cannot be trained is refused here, before anything is started, with a sentence that names it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim import Optimizer

from paceline.errors import UsageError
from paceline.logic.partition import ITEM_BYTES, TRAINABLE
from paceline.messages import ModelSpec, TensorSpec
from paceline.tensors.optimizer import build_optimizer, is_elementwise, optimizer_class, scales_gradients

NOT_SETTINGS = frozenset({"params", "param_names"})
CPU = torch.device("cpu")

Plain: TypeAlias = "bool | int | float | str | list[Plain] | None"


class _Named(NamedTuple):
    """A parameter with its optimizer group (-1: none) and all its names."""

    parameter: Tensor
    group: int
    names: tuple[str, ...]


def spec_of(model: nn.Module, optimizer: Optimizer) -> ModelSpec:
    """The spec of `model` trained by `optimizer`. Raises UsageError for what cannot be trained, here or on a server."""
    kind = type(optimizer)
    _check_devices(model, optimizer)
    spec = ModelSpec(
        optimizer=_check_optimizer(kind),
        parameters=_parameter_specs(_named(model, optimizer)),
        buffers=_buffer_specs(model),
        groups=encode(settings_of(optimizer)),
        arguments=encode(_for_servers(_plain_map(optimizer.defaults, "defaults"), device_of(model))),
        elementwise=is_elementwise(kind),
        scales_gradients=scales_gradients(kind),
    )
    _check_rebuilding(spec)
    return spec


def parameters_of(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    """The parameters in the order of `spec_of(model, optimizer).parameters`."""
    return [parameter for parameter, _, _ in _named(model, optimizer)]


def device_of(model: nn.Module) -> torch.device:
    """Where the model is; `spec_of` refuses one that is in several places."""
    return next((tensor.device for tensor in model.parameters()), CPU)


def settings_of(optimizer: Optimizer) -> list[dict[str, Plain]]:
    """The settings of every param group as plain values. Raises UsageError for one that is not plain."""
    return [
        _for_servers(_plain_map(group, f"param group {index}"), group["params"][0].device if group["params"] else CPU)
        for index, group in enumerate(optimizer.param_groups)
    ]


def encode(settings: list[dict[str, Plain]] | dict[str, Plain]) -> bytes:
    """Settings as the msgpack that messages carry."""
    return msgspec.msgpack.encode(settings)


def _named(model: nn.Module, optimizer: Optimizer) -> list[_Named]:
    names: dict[int, list[str]] = {}
    of_model: dict[int, Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        of_model[id(parameter)] = parameter
    named: list[_Named] = []
    seen: set[int] = set()
    for group, settings in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(settings["params"]):
            own = tuple(names.get(id(parameter), (f"optimizer.{group}.{i}",)))
            if id(parameter) in seen:
                raise UsageError(f"parameter {own[0]} is in the optimizer twice; each parameter may be in one group, once")
            seen.add(id(parameter))
            named.append(_Named(parameter, group, own))
    rest = (_Named(parameter, -1, tuple(names[key])) for key, parameter in of_model.items() if key not in seen)
    return [*named, *rest]


def _parameter_specs(named: list[_Named]) -> tuple[TensorSpec, ...]:
    specs: list[TensorSpec] = []
    places: dict[int, str] = {}
    for parameter, group, (name, *aliases) in named:
        dtype = _dtype_of(parameter)
        if group >= 0 and dtype not in TRAINABLE:
            allowed = " or ".join(sorted(TRAINABLE))
            raise UsageError(f"parameter {name} has dtype {dtype}, which is not trained; convert the model to {allowed}")
        _check_tensor(parameter, "parameter", name)
        other = places.setdefault(parameter.data_ptr(), name) if parameter.numel() else name
        if other != name:
            raise UsageError(f"parameters {other} and {name} are two tensors in the same memory; tie them by one Parameter object for both")
        specs.append(TensorSpec(name, tuple(parameter.shape), dtype, group, tuple(aliases)))
    return tuple(specs)


def _buffer_specs(model: nn.Module) -> tuple[TensorSpec, ...]:
    """Buffers once each, with aliases; those that `state_dict` leaves out are marked."""
    saved = model.state_dict(keep_vars=True).keys()
    names: dict[int, list[str]] = {}
    buffers: dict[int, Tensor] = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        names.setdefault(id(buffer), []).append(name)
        buffers[id(buffer)] = buffer
    specs: list[TensorSpec] = []
    for key, buffer in buffers.items():
        name, *aliases = names[key]
        _check_tensor(buffer, "buffer", name)
        is_saved = any(one in saved for one in names[key])
        specs.append(TensorSpec(name, tuple(buffer.shape), _dtype_of(buffer), -1, tuple(aliases), is_saved))
    return tuple(specs)


def _dtype_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_tensor(tensor: Tensor, kind: str, name: str) -> None:
    """Refuse a tensor whose values cannot lie in the flat memory as they are."""
    what = f"{kind} {name}"
    if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
        raise UsageError(f"{what} is not initialised yet; run the model on one batch before run.prepare()")
    if tensor.is_meta:
        raise UsageError(f"{what} is on the meta device and has no values; build the model on the cpu device")
    if tensor.layout is not torch.strided:
        raise UsageError(f"{what} has the layout {tensor.layout}, which is not supported; allowed: dense tensors")
    if _dtype_of(tensor) not in ITEM_BYTES:
        raise UsageError(f"{what} has dtype {_dtype_of(tensor)}, which is not supported; allowed: {', '.join(sorted(ITEM_BYTES))}")


def _check_devices(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse a device that copies cannot run beside, and a model on several."""
    named = [
        *((f"parameter {one.names[0]}", one.parameter) for one in _named(model, optimizer)),
        *((f"buffer {name}", buffer) for name, buffer in model.named_buffers()),
    ]
    placed = [(what, tensor.device) for what, tensor in named if not tensor.is_meta]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    allowed = {"cpu"} if accelerator is None else {"cpu", accelerator.type}
    for what, device in placed:
        if device.type not in allowed:
            raise UsageError(f"{what} is on {device}, which is not supported here; allowed: {' or '.join(sorted(allowed))}")
        if device != placed[0][1]:
            raise UsageError(
                f"{what} is on {device}, but {placed[0][0]} on {placed[0][1]}; a model on several devices is not supported, move it to one"
            )


def _check_optimizer(kind: type[Optimizer]) -> str:
    """The name by which servers find the class. Raises UsageError when they cannot, or could not step it."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    if "<locals>" in kind.__qualname__:
        raise UsageError(
            f"the optimizer {path} is defined inside a function, where servers cannot import it; move it to a module of its own"
        )
    if optimizer_class(path) is not kind:
        raise UsageError(f"the optimizer {path} is not the class that its module has under this name; servers could not import it")
    return path


def _check_rebuilding(spec: ModelSpec) -> None:
    """Build the optimizer as a server will, over tensors of the same dimensions and one element each."""
    tensors: dict[int, list[Tensor]] = {}
    for parameter in spec.parameters:
        if parameter.group >= 0:
            tensors.setdefault(parameter.group, []).append(torch.zeros([1] * len(parameter.shape)))
    build_optimizer(spec, tensors)


def _for_servers(settings: dict[str, Plain], device: torch.device) -> dict[str, Plain]:
    """Without the kernels that were chosen for an accelerator: servers step on the cpu, and choose their own."""
    if device.type != "cpu":
        settings |= {name: value for name, value in (("fused", None), ("foreach", None), ("capturable", False)) if name in settings}
    return settings


def _plain_map(settings: dict[str, object], where: str) -> dict[str, Plain]:
    return {name: _plain(value, name, where) for name, value in settings.items() if name not in NOT_SETTINGS}


def _plain(value: object, name: str, where: str) -> Plain:
    match value:
        case None | bool():
            return value
        case int() if -(2**63) <= value < 2**63:
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case Tensor() if value.numel() == 1:
            return _plain(value.item(), name, where)
        case tuple() | list():
            return [_plain(one, name, where) for one in value]
        case _:
            allowed = "None, bool, int, float, str, a one-element tensor and lists of these"
            raise UsageError(f"optimizer setting {name} of {where} is {value!r}, which cannot be sent to the servers; allowed: {allowed}")
