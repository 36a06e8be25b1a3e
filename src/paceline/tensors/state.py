"""Parameters and optimizer state as safetensors bytes: a shard's slices, what they join to, and a whole state to load.

Tensors are named `parameter/INDEX`, `buffer/INDEX` (its place in the layout), `state/INDEX/KEY` (whole) and
`slice/INDEX/KEY` (a shard's elements); what is no tensor is JSON in the header. Nothing here can hold code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.optim import Optimizer

from paceline.errors import ProtocolError, UsageError
from paceline.logic.partition import Slot, borders_of, layout_of
from paceline.messages import ModelSpec
from paceline.tensors.memory import DTYPES
from paceline.tensors.optimizer import placed

Plain: TypeAlias = bool | int | float | str | None
States: TypeAlias = dict[int, dict[str, object]]
"""Optimizer state by the index of a parameter, as in torch's `state_dict`."""

PLAIN = "plain"
LENGTH_BYTES = 8


class Gathered(NamedTuple):
    """Whole parameters and optimizer state by the index of the parameter in the model's spec, buffers by their place in the layout."""

    parameters: dict[int, Tensor]
    state: States
    buffers: dict[int, Tensor]


class Parcel:
    """What is being written: tensors by name, and plain values by parameter index and key."""

    def __init__(self) -> None:
        self._tensors: dict[str, list[Tensor]] = {}
        self._plain: dict[int, dict[str, Plain]] = {}

    def add_parameter(self, index: int, values: Tensor) -> None:
        """A parameter, or the next of its elements that are here."""
        self._tensors.setdefault(f"parameter/{index}", []).append(values)

    def add_buffer(self, index: int, values: Tensor) -> None:
        """A whole buffer."""
        self._tensors[f"buffer/{index}"] = [values.clone()]

    def add_state(self, index: int, key: str, value: object, *, sliced: bool = False) -> None:
        """One value of a parameter's state. Sliced ones may come in several parts; of the others the first counts."""
        if not isinstance(value, Tensor):
            self._plain.setdefault(index, {}).setdefault(key, _plain(value, index, key))
        elif sliced:
            self._tensors.setdefault(f"slice/{index}/{key}", []).append(value)
        else:
            # Several parameters may share a counter here, which safetensors does not allow.
            self._tensors.setdefault(f"state/{index}/{key}", [value.clone()])

    def encode(self) -> bytes:
        """The safetensors bytes."""
        joined = {name: parts[0] if len(parts) == 1 else torch.cat(parts) for name, parts in self._tensors.items()}
        tensors = {name: values.detach().cpu().contiguous() for name, values in joined.items()}
        return save(tensors, {PLAIN: json.dumps(self._plain)})


def _plain(value: object, index: int, key: str) -> Plain:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(
        f"optimizer state {key!r} of parameter {index} is a {type(value).__name__}, which cannot be saved; "
        "allowed are tensors, numbers, strings and None"
    )


def _decode(data: bytes | memoryview) -> tuple[dict[str, Tensor], dict[int, dict[str, Plain]]]:
    raw = bytes(data)
    try:
        tensors = load(raw)
        size = int.from_bytes(raw[:LENGTH_BYTES], "little")
        header = json.loads(raw[LENGTH_BYTES : LENGTH_BYTES + size])
        plain = {int(index): values for index, values in json.loads(header["__metadata__"][PLAIN]).items()}
    except (SafetensorError, KeyError, ValueError) as error:
        raise ProtocolError(f"{len(raw)} bytes are no state of a run ({error})") from error
    return tensors, plain


def state_of(optimizer: Optimizer) -> States:
    """The state of a plain torch optimizer by the index of the parameter, in the order of its groups."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {index: dict(optimizer.state[one]) for index, one in enumerate(parameters) if optimizer.state.get(one)}


def placed_state(optimizer: Optimizer, state: States) -> States:
    """`state` on the devices where the optimizer itself would have it."""
    groups = [(group, parameter) for group in optimizer.param_groups for parameter in group["params"]]
    there: States = {}
    for index, values in state.items():
        group, parameter = groups[index]
        there[index] = {key: placed(key, value, group, parameter.device) for key, value in values.items()}
    return there


def pack(model: ModelSpec, parameters: dict[int, Tensor] | None, state: States | None, buffers: Sequence[Tensor] = ()) -> bytes:
    """A whole state, from which every shard loads its slices. Raises UsageError for a parameter of another shape."""
    parcel = Parcel()
    for index, values in (parameters or {}).items():
        spec = model.parameters[index]
        if tuple(values.shape) != spec.shape:
            raise UsageError(f"the loaded {spec.name} has shape {list(values.shape)}, but the parameter has {list(spec.shape)}")
        parcel.add_parameter(index, values)
    for index, values in enumerate(buffers):
        parcel.add_buffer(index, values)
    for index, values in (state or {}).items():
        for key, value in values.items():
            parcel.add_state(index, key, value)
    return parcel.encode()


def unpack(data: bytes | memoryview) -> Gathered:
    """What `pack` wrote. Raises ProtocolError when it is something else."""
    tensors, plain = _decode(data)
    gathered = Gathered({}, {index: dict(values) for index, values in plain.items()}, {})
    for name, values in tensors.items():
        kind, index, key = _parsed(name)
        if kind == "parameter":
            gathered.parameters[index] = values
        elif kind == "buffer":
            gathered.buffers[index] = values
        else:
            gathered.state.setdefault(index, {})[key] = values
    return gathered


def assemble(model: ModelSpec, num_shards: int, parts: list[bytes]) -> Gathered:
    """Whole parameters and state, in order, from what each shard saved at one version; `parts` are in the order of shards.

    Only parameters that an optimizer holds are there.
    """
    if len(parts) != num_shards:
        raise ProtocolError(f"a state of {num_shards} shards was put together from {len(parts)} parts")
    layout = layout_of(model)
    borders = borders_of(layout, num_shards, elementwise=model.elementwise)
    slots = {slot.index: slot for slot in sorted(layout.trained)}
    parameters = {index: torch.empty(slot.spec.shape, dtype=DTYPES[slot.spec.dtype]) for index, slot in slots.items()}
    state: States = {}
    for start, part in zip(borders, parts, strict=False):
        tensors, plain = _decode(part)
        for index, values in plain.items():
            state.setdefault(index, {}).update(values)
        for name, values in tensors.items():
            kind, index, key = _parsed(name)
            if kind == "parameter":
                _place(parameters[index], slots[index], start, values)
            elif kind == "slice":
                whole = state.setdefault(index, {}).setdefault(key, torch.empty(slots[index].spec.shape, dtype=values.dtype))
                assert isinstance(whole, Tensor)
                _place(whole, slots[index], start, values)
            else:
                state.setdefault(index, {})[key] = values
    return Gathered(parameters, dict(sorted(state.items())), {})


def _parsed(name: str) -> tuple[str, int, str]:
    kind, _, rest = name.partition("/")
    index, _, key = rest.partition("/")
    return kind, int(index), key


def _place(whole: Tensor, slot: Slot, shard_start: int, values: Tensor) -> None:
    """Write a shard's elements of a parameter to where they belong; a shard holds a parameter from its own start or the parameter's."""
    first = max(shard_start - slot.start, 0) // whole.element_size()
    whole.view(-1)[first : first + values.numel()].copy_(values.view(-1))
