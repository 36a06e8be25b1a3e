"""The model's buffers (BatchNorm statistics) beside the gradients, and back from their average."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from paceline.errors import UsageError
from paceline.logic.partition import Layout, arena_map, parameter_arena_bytes
from paceline.tensors.staging import Staging
from paceline.tensors.storage import tensor_at


class _Place(NamedTuple):
    """A buffer by its module and attribute, since a module may put another tensor there, and where it is copied."""

    module: nn.Module
    attribute: str
    name: str
    contributions: tuple[Tensor, Tensor]
    mean: Tensor
    shared: Tensor


class Buffers:
    """All buffers of `model`: copied out beside a gradient buffer, copied in from the averaged ones."""

    def __init__(self, model: nn.Module, layout: Layout, arena: Tensor, shared: Tensor, staging: Staging) -> None:
        ours, (shared_at, _) = arena_map(layout), parameter_arena_bytes(layout)
        self._staging = staging
        self._places: list[_Place] = []
        for slot in layout.buffers:
            spec, start = slot.spec, slot.start
            path, _, attribute = spec.name.rpartition(".")
            first, second = (tensor_at(arena, at + start, spec) for at in ours.buffers)
            mean, initial = tensor_at(arena, ours.mean_buffers + start, spec), tensor_at(shared, shared_at + start, spec)
            self._places.append(_Place(model.get_submodule(path), attribute, spec.name, (first, second), mean, initial))

    def current(self) -> list[Tensor]:
        """The module's buffers, in the order of the layout."""
        return [_current(place) for place in self._places]

    def store(self, index: int) -> None:
        """Copy the module's buffers beside gradient buffer `index`."""
        self._staging.bring((place.contributions[index], _current(place)) for place in self._places)
        self._staging.wait()

    def load_mean(self) -> None:
        """Copy the averaged buffers that were pulled into the module's, in place."""
        self._staging.send((_current(place), place.mean) for place in self._places)

    def write_initial(self) -> None:
        """Copy the module's buffers into the parameter arena."""
        for place in self._places:
            place.shared.copy_(_current(place))

    def read_initial(self) -> None:
        """Copy the buffers of the parameter arena into the module's, in place."""
        for place in self._places:
            _current(place).copy_(place.shared)


def _current(place: _Place) -> Tensor:
    buffer = getattr(place.module, place.attribute)
    if not isinstance(buffer, Tensor) or buffer.shape != place.mean.shape or buffer.dtype != place.mean.dtype:
        found = f"{list(buffer.shape)} {buffer.dtype}" if isinstance(buffer, Tensor) else repr(buffer)
        wanted = f"{list(place.mean.shape)} {place.mean.dtype}"
        raise UsageError(f"buffer {place.name} was {wanted} at prepare and is {found} now; its shape and dtype must stay")
    return buffer.detach()
