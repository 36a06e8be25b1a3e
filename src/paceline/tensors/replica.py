"""A worker's copy of the model: parameters that point into shared memory, gradients that are written there.

On a device the model keeps its own tensors, and copies go to and fro. The optimizer's state is not here: the servers
hold it and make the updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.errors import UsageError
from paceline.logic.partition import Memory, arena_map, layout_of, parameter_arena_bytes
from paceline.messages import ModelSpec
from paceline.tensors.buffers import Buffers
from paceline.tensors.gradient import Gradients
from paceline.tensors.grouped import GroupedGradients
from paceline.tensors.hooked import Gradient
from paceline.tensors.spec import Plain, encode, parameters_of, settings_of
from paceline.tensors.staged import StagedGradients
from paceline.tensors.staging import AtOnce, Staging, staging_for
from paceline.tensors.state import pack, state_of
from paceline.tensors.storage import tensor_at
from paceline.tensors.watch import Watch


class Replica:
    """The worker side of a model and its optimizer, from `seed` or `adopt` on.

    `arena` is this worker's own, `shared` the parameter arena: uint8, one-dimensional, zeroed when new, of the
    sizes that `logic.partition` gives. The parameter objects stay the ones that the script made. `staging` stands for
    the one that the model's device needs.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, spec: ModelSpec, arena: Tensor, shared: Tensor, *, staging: Staging | None = None
    ) -> None:
        layout = layout_of(spec)
        parameters = parameters_of(model, optimizer)
        trained = layout.trained
        private_at = arena_map(layout).parameters
        self._spec = spec
        self._optimizer = optimizer
        self._trainable_bytes = layout.trainable_bytes
        self._trained = [parameters[slot.index] for slot in trained]
        self._private = [tensor_at(arena, private_at + slot.start, slot.spec) for slot in trained]
        self._shared = [tensor_at(shared, slot.start, slot.spec) for slot in trained]
        self._whole: Sequence[Tensor] = ()
        self._is_whole_near = False
        self._held: Tensor | None = None
        self._memories = (arena, shared)
        self._layout = layout
        self._constant_slots = [slot for slot in layout.slots if slot.spec.group < 0]
        self._constants = [(parameters[slot.index], tensor_at(shared, slot.start, slot.spec)) for slot in self._constant_slots]
        self._place: Memory | None = None
        self._watch = Watch(self._trained, [slot.spec.name for slot in trained])
        self._staging = staging or staging_for(parameters[0].device, arena, shared)
        self._values = [] if self._staging is None else [parameter.data for parameter in self._trained]
        if self._staging is None:
            self._gradients = Gradients(layout, parameters, arena)
        else:
            self._gradients = StagedGradients(layout, parameters, arena, self._staging)
        self._gradients.watch()
        self._grouped = GroupedGradients(layout, parameters)
        self._is_in_group = False
        self._buffers = Buffers(model, layout, arena, shared, self._staging or AtOnce())
        self._settings: list[dict[str, Plain]] = []
        self._num_groups = len(optimizer.param_groups)
        self.max_norm = 0.0

    @property
    def parameter_bytes(self) -> int:
        """What one pull of every shard copies."""
        return self._trainable_bytes

    # --- start and end ------------------------------------------------------------------------------------

    @torch.no_grad()
    def seed(self) -> bytes | None:
        """Write the initial parameters and buffers into the parameter arena; returns the optimizer's state, if it has any.

        The state is let go of here.
        """
        for parameter, view in (*zip(self._trained, self._shared, strict=True), *self._constants):
            view.copy_(parameter)
        self._buffers.write_initial()
        state = state_of(self._optimizer)
        self._optimizer.state.clear()
        return pack(self._spec, None, state) if state else None

    @torch.no_grad()
    def adopt_constants(self) -> None:
        """Take the first worker's parameters that no optimizer holds, and its buffers; let go of the optimizer's state."""
        self.load_constants()
        self._buffers.read_initial()
        self._optimizer.state.clear()

    @torch.no_grad()
    def load_constants(self) -> None:
        """Copy the run's values of the parameters that no optimizer holds into the model's."""
        for (parameter, view), slot in zip(self._constants, self._constant_slots, strict=True):
            own = self._held if self._place == "whole" else None
            parameter.copy_(view if own is None else tensor_at(own, slot.start, slot.spec))

    def release(self) -> None:
        """Take the hooks off; the parameters go on to point where they do."""
        self._gradients.release()
        self._grouped.release()
        if self._staging is not None:
            self._staging.release()

    # --- parameters ---------------------------------------------------------------------------------------

    def point(self, memory: Memory) -> None:
        """Let the parameters be the shards' memory, this worker's private copy of it (filled by a pull), or all shards of its own."""
        if memory == self._place:
            return
        self._place = memory
        is_near = self._staging is None or self._is_at_home
        for parameter, values in zip(self._trained, self._views() if is_near else self._values, strict=True):
            parameter.data = values
        self._watch.settle()

    def hold(self) -> Tensor:
        """All shards' memory in this worker, with what was pulled last: parameters, what no optimizer holds, averaged buffers."""
        (arena, shared), layout, places = self._memories, self._layout, arena_map(self._layout)
        buffers_at, size_bytes = parameter_arena_bytes(layout)
        if self._held is None:
            self._held = torch.zeros(size_bytes, dtype=torch.uint8)
        held = self._held
        held[: layout.trainable_bytes].copy_(arena[places.parameters :][: layout.trainable_bytes])
        held[layout.trainable_bytes : buffers_at].copy_(shared[layout.trainable_bytes : buffers_at])
        held[buffers_at:][: layout.buffer_bytes].copy_(arena[places.mean_buffers :][: layout.buffer_bytes])
        return held

    def live_in(self, whole: Sequence[Tensor], *, near: bool) -> None:
        """Where this worker holds all shards, its parameters are `whole`, or, if they are not `near`, copies on its device."""
        self._whole, self._is_whole_near = whole, near
        if self._place == "whole":
            self._place = None  # they were elsewhere

    @property
    def _is_at_home(self) -> bool:
        """Whether the parameters are those that this worker itself updates, though its model is on a device."""
        return self._place == "whole" and self._is_whole_near

    def _views(self) -> Sequence[Tensor]:
        return {"private": self._private, "shards": self._shared, "whole": self._whole}[self._place or "private"]

    def await_copies(self) -> None:
        """Until nothing of shared memory is being copied to or from a device, so that servers may write it."""
        if self._staging is not None:
            self._staging.wait()

    def copy_in(self) -> None:
        """New parameters lie where `point` says: begin to copy them to the device, if the model is on one."""
        if self._staging is not None and not self._is_at_home:
            self._staging.send(zip(self._values, self._views(), strict=True))

    def check_untouched(self) -> None:
        """Raise UsageError when the script wrote a parameter.

        A write through `.data` is noticed only when it re-points the parameter.
        """
        self._watch.check()

    def settle(self) -> None:
        """Take the parameters as they are now for the run's own, after a write-through of a loaded state."""
        self._watch.settle()

    # --- a step -------------------------------------------------------------------------------------------

    def tell_of_gradients(self, on_written: Callable[[int, int], bool]) -> None:
        """Let this hear what is written into the gradient buffer; see `Gradients.on_written`. Of a device or a group nothing is told."""
        if isinstance(self._gradients, Gradients):
            self._gradients.on_written = on_written

    def enter_group(self, on_written: Callable[[int, int], None]) -> GroupedGradients:
        """From now on a group sums the gradients, which are nowhere but in `.grad` and where these bring them."""
        self._gradients.release()
        self._grouped.on_written = on_written
        self._grouped.watch()
        self._is_in_group = True
        return self._grouped

    def leave_group(self) -> None:
        """Gradients are in the arena again from now on, the present one too."""
        if self._is_in_group:
            self._is_in_group = False
            self._grouped.release()
            self._gradients.watch()
            self._gradients.take_back()

    def clip(self, max_norm: float) -> None:
        """The fold of this step is to be clipped to `max_norm`; see `max_norm`, 0 when it is not."""
        self.max_norm = max_norm

    def local_norm(self) -> float:
        """The 2-norm of this worker's gradient as it is now."""
        return self.finish_gradient().norm

    def finish_gradient(self) -> Gradient:
        """The gradient, complete in the current buffer, or in a group's hands. Raises UsageError when no parameter has one."""
        return (self._grouped if self._is_in_group else self._gradients).collect()

    def flip(self, buffer: int, *, keep: bool = False) -> None:
        """The next backward pass goes into `buffer`.

        `keep`: the last gradient has been read by every server, so `.grad` stays what it is, as in plain torch.
        Without it the buffer may still be read, nothing may write it, and `.grad` is dropped.
        """
        self.max_norm = 0.0
        self._gradients.flip(buffer, keep=keep)
        self._grouped.flip()

    def hyper(self) -> bytes:
        """The msgpack of all groups' settings if they changed since the last call (or at the first), else nothing."""
        if len(self._optimizer.param_groups) != self._num_groups:
            found = len(self._optimizer.param_groups)
            raise UsageError(f"the optimizer had {self._num_groups} param groups at prepare and has {found} now; add groups before prepare")
        settings = settings_of(self._optimizer)
        if settings == self._settings:
            return b""
        self._settings = settings
        return encode(settings)

    # --- buffers ------------------------------------------------------------------------------------------

    def store_buffers(self, index: int) -> None:
        """Copy the model's buffers beside gradient buffer `index`."""
        self._buffers.store(index)

    def buffers(self) -> list[Tensor]:
        """The model's own buffers, as a state to load takes them."""
        return self._buffers.current()

    def load_mean_buffers(self) -> None:
        """Copy the averaged buffers that were pulled into the model's."""
        self._buffers.load_mean()
