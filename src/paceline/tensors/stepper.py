"""The user's optimizer over a shard: one instance, stepped window by window, its tensors split where gradients are absent.

A parameter without a gradient must be left alone with its state, as torch does. So where neighbours in one tensor
differ, the tensor and its state are split, and stay so.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.logic.partition import Slot
from paceline.messages import ModelSpec
from paceline.tensors.memory import DTYPES, Flat, has_bit
from paceline.tensors.momentum import BUFFERS, scaled_momentum
from paceline.tensors.optimizer import (
    SCALARS,
    Settings,
    build_optimizer,
    decode_settings,
    loaded_scalar,
    placed,
    runs_torch_step,
    update_settings,
)
from paceline.tensors.state import States
from paceline.tensors.window import Part, Window

Pair: TypeAlias = tuple[Tensor, Tensor]


class Stepper:
    """The optimizer of a shard that is not empty."""

    def __init__(self, model: ModelSpec, windows: Sequence[Window], memory: Flat) -> None:
        by_group: dict[int, list[Tensor]] = {}
        for part in (part for window in windows for part in window.parts):
            by_group.setdefault(part.run.group, []).append(part.parameter)
        self._windows = windows
        self._memory = memory
        self._elementwise = model.elementwise
        self._optimizer = build_optimizer(model, by_group)
        self._groups = dict(zip(sorted(by_group), self._optimizer.param_groups, strict=True))
        self._is_torch = runs_torch_step(type(self._optimizer))
        self._absent = b""

    @property
    def only_reads(self) -> bool:
        """Whether gradients are left as they are, which is known of torch's own optimizers only."""
        return self._is_torch

    # --- settings -----------------------------------------------------------------------------------------

    def update(self, hyper: bytes) -> None:
        """Set the groups' settings that changed: the msgpack of a map for every group of the model."""
        changed = decode_settings(hyper)
        for index, group in self._groups.items():
            update_settings(group, changed[index])

    @contextmanager
    def scaled(self, *, lr: float, momentum: float) -> Generator[None]:
        """Multiply every learning rate, and every momentum's coefficient, for the length of one update."""
        undo: list[tuple[Settings, Settings]] = []
        for group in self._groups.values() if lr != 1.0 or momentum != 1.0 else ():
            changed = {"lr": group["lr"] * lr} if "lr" in group and lr != 1.0 else {}
            if momentum != 1.0:
                changed.update(scaled_momentum(group, momentum))
            undo.append((group, {key: group[key] for key in changed}))
            group.update(changed)
        yield
        for group, settings in undo:
            group.update(settings)

    def zero_momentum(self) -> None:
        """Let the momentum begin at zero."""
        for state in self._optimizer.state.values():
            for key in BUFFERS & state.keys():
                if isinstance(state[key], Tensor):
                    state[key].zero_()

    # --- a step -------------------------------------------------------------------------------------------

    def mark_absent(self, absent: bytes) -> None:
        """The parameters in this bitmap have no gradient in the update to come."""
        if absent == self._absent:
            return
        self._absent = absent
        for window in self._windows:
            for part in list(window.parts):
                self._split(
                    window, part, [b.start for a, b in pairwise(part.slots) if has_bit(absent, a.index) != has_bit(absent, b.index)]
                )

    def step(self, window: Window, gradients: Sequence[Tensor]) -> None:
        """Step the parts of `window` that are not absent."""
        pairs = zip(window.parts, gradients, strict=True)
        present: list[Pair] = [(part.parameter, gradient) for part, gradient in pairs if not has_bit(self._absent, part.slots[0].index)]
        self._show(window)
        for phase in self._phases(present):
            for parameter, gradient in phase:
                parameter.grad = gradient
            self._step()
            for parameter, _ in phase:
                parameter.grad = None

    def _step(self) -> None:
        """The optimizer is the user's: what it raises is told as such. Raises UsageError."""
        try:
            self._optimizer.step()
        except Exception as error:
            name = f"{type(self._optimizer).__module__}:{type(self._optimizer).__qualname__}"
            raise UsageError(f"the optimizer {name} raised {type(error).__name__} in step(): {error}") from error

    def _show(self, window: Window) -> None:
        """Let the optimizer know this window's tensors only, and the groups that they are of."""
        by_group: dict[int, list[Tensor]] = {}
        for part in window.parts:
            by_group.setdefault(part.run.group, []).append(part.parameter)
        for index, parameters in by_group.items():
            self._groups[index]["params"] = parameters
        self._optimizer.param_groups = [self._groups[index] for index in by_group]

    def _phases(self, present: list[Pair]) -> list[list[Pair]]:
        """Fresh tensors first: torch's fused SGD cannot begin the momentum of one while it goes on with another's."""
        if not self._is_torch:
            return [present]
        state = self._optimizer.state
        fresh, known = [pair for pair in present if not state.get(pair[0])], [pair for pair in present if state.get(pair[0])]
        return [phase for phase in (fresh, known) if phase]

    def _split(self, window: Window, part: Part, borders: list[int]) -> list[Part]:
        """Cut a part and its state at the starts of slots; returns what it became."""
        if not borders:
            return [part]
        parts = part.split(borders, self._memory)
        state = self._optimizer.state.pop(part.parameter, None)
        for one in parts if state else ():
            low = one.first - part.first
            self._optimizer.state[one.parameter] = {
                key: _cut(value, low, low + one.num_elements) if self.is_sliced(key, value) else _copy(value)
                for key, value in state.items()
            }
        window.replace(part, parts)
        return parts

    # --- state --------------------------------------------------------------------------------------------

    def is_sliced(self, key: str, value: object) -> bool:
        """Whether this value of a part's state has an element for each of the part's."""
        return self._elementwise and key not in SCALARS and isinstance(value, Tensor)

    def state_of(self, part: Part) -> dict[str, object]:
        """The state of a part as it is, empty before its first step."""
        return self._optimizer.state.get(part.parameter, {})

    def put_state(self, part: Part, state: dict[str, object]) -> None:
        """Let `state` be that of a part."""
        if state:
            self._optimizer.state[part.parameter] = state
        else:
            self._optimizer.state.pop(part.parameter, None)

    def fragments(self) -> Iterator[tuple[int, str, object, bool]]:
        """All state as (parameter index, key, value, sliced): `sliced` values are this shard's elements of one, in order."""
        for part in (part for window in self._windows for part in window.parts):
            for key, value in self._optimizer.state.get(part.parameter, {}).items():
                sliced = self.is_sliced(key, value)
                for slot in part.slots:
                    yield slot.index, key, _cut(value, *part.overlap(slot)) if sliced else value, sliced

    def restore(self, states: States) -> None:
        """Replace all state by this shard's slices of `states`; a parameter that is not named there starts afresh."""
        self._optimizer.state.clear()
        for window in self._windows:
            for part in list(window.parts):
                borders = [b.start for a, b in pairwise(part.slots) if self._kind(states, a) != self._kind(states, b)]
                for one in self._split(window, part, borders):
                    state = self._restored(one, states)
                    if state:
                        self._optimizer.state[one.parameter] = state

    def _kind(self, states: States, slot: Slot) -> Hashable:
        """What must be equal for two parameters to live in one tensor."""
        state = sorted(states.get(slot.index, {}).items())
        return tuple((key, None if self.is_sliced(key, value) else _number(value)) for key, value in state)

    def _restored(self, part: Part, states: States) -> dict[str, object]:
        state = states.get(part.slots[0].index, {})
        group, device = self._groups[part.run.group], part.parameter.device
        if not self._elementwise:
            return {key: placed(key, _copy(value), group, device) for key, value in state.items()}
        return {
            key: self._joined(part, key, states) if self.is_sliced(key, value) else placed(key, loaded_scalar(_copy(value)), group, device)
            for key, value in state.items()
        }

    def _joined(self, part: Part, key: str, states: States) -> Tensor:
        joined = torch.zeros(part.num_elements, dtype=DTYPES[part.run.dtype], device=part.parameter.device)
        for slot in part.slots:
            value = states[slot.index][key]
            if not isinstance(value, Tensor) or value.numel() != slot.num_elements:
                found = list(value.shape) if isinstance(value, Tensor) else repr(value)
                raise UsageError(
                    f"optimizer state {key} of {slot.spec.name} is {found}, but the parameter has shape {list(slot.spec.shape)}"
                )
            low, high = part.overlap(slot)
            start = max(part.run.start - slot.start, 0) // part.item_bytes
            joined[low:high].copy_(value.reshape(-1)[start : start + high - low])
        return joined


def _cut(value: object, low: int, high: int) -> Tensor:
    assert isinstance(value, Tensor)
    return value[low:high]


def _number(value: object) -> Hashable:
    return value.item() if isinstance(value, Tensor) else str(value)


def _copy(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else value
