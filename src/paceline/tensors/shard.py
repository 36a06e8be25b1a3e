"""One server's part of the parameters: sums gradients where workers wrote them, steps the optimizer, copies out.

The parameters are the shared parameter arena itself, which the optimizer writes in place; on a device it writes its own and
shows them there. Nothing here decides anything: which gradients, in which order and with which weights is the order's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.errors import ProtocolError
from paceline.logic.partition import Slot, arena_map, borders_of, layout_of, parameter_arena_bytes
from paceline.messages import Member, ModelSpec
from paceline.pace import Pace
from paceline.tensors.change import Change, Ruler
from paceline.tensors.kept import Kept
from paceline.tensors.means import MeanBuffers
from paceline.tensors.memory import check_memory, typed
from paceline.tensors.momentum import RAMP_UPDATES, Ramp
from paceline.tensors.reduction import Reduction, Source, Term
from paceline.tensors.staleness import Stale
from paceline.tensors.state import Gathered, Parcel, unpack
from paceline.tensors.stepper import Stepper
from paceline.tensors.window import Window, cut
from paceline.tensors.workplace import Workplace


class Peer(NamedTuple):
    """What a shard sees of a worker's arena: two gradient buffers, what lies beside them, and where to copy to.

    `read` are the parameters that were copied there last, seen as a gradient is.
    """

    gradients: tuple[Source, Source]
    read: Source
    buffers: tuple[Tensor, Tensor]
    parameters: Tensor
    mean_buffers: Tensor


class Shard:
    """Shard `shard` of `num_shards` of a model, over the parameter arena `memory` (uint8), which holds the values already.

    With a `device` the optimizer works there. Raises UsageError when the model's optimizer cannot be built here.
    """

    def __init__(
        self,
        model: ModelSpec,
        shard: int,
        num_shards: int,
        memory: Tensor,
        *,
        device: torch.device | None = None,
        window_bytes: int | None = None,
    ) -> None:
        layout = layout_of(model)
        borders = borders_of(layout, num_shards, elementwise=model.elementwise)
        self._layout = layout
        self._start, self._stop = borders[shard], borders[shard + 1]
        self._shared = check_memory(memory, parameter_arena_bytes(layout)[1], "the parameter arena")
        self._values = memory[self._start : self._stop]
        self._place = Workplace(memory, self._start, self._stop, device)
        own = self._memory = self._place.memory
        window_bytes = window_bytes or self._place.window_bytes
        self._windows = cut(layout, own, (self._start, self._stop), elementwise=model.elementwise, window_bytes=window_bytes)
        self._stepper = Stepper(model, self._windows, own) if self._windows else None
        self._reduction = self._new_reduction()
        self._means = MeanBuffers(layout, memory) if shard == 0 and layout.buffers else None
        self._holds_constants = shard == 0
        self._peers: dict[tuple[int, int], Peer] = {}
        self._suspects: list[Window] = []
        self._change = Change(self._windows, own)
        self._stale = Stale(self._windows, self._change, scales_gradients=model.scales_gradients)
        self._kept = Kept(self._windows, own[self._start : self._stop], self._start, self._stepper) if self._stepper is not None else None
        self._ramp = Ramp()
        self.on_window: Callable[[int], None] | None = None
        """Hears, while `apply` works, up to which byte of this shard the update has been made; it may call `follow`."""
        self._done = 0
        self._followers: dict[tuple[int, int], Tensor] = {}

    def _new_reduction(self) -> Reduction:
        lend = not self._place.is_apart and self._stepper is not None and self._stepper.only_reads
        return Reduction(self._windows, self._memory.device, lend=lend)

    # --- workers ------------------------------------------------------------------------------------------

    def attach(self, worker: int, incarnation: int, memory: object) -> None:
        """Read gradients from this worker's arena (a uint8 tensor), and copy parameters into it, from now on."""
        places = arena_map(self._layout)
        arena = check_memory(memory, places.size_bytes, f"the arena of worker {worker}")
        num_buffers = self._layout.buffer_bytes
        first, second = (self._source(arena, at) for at in places.gradients)
        self._peers[worker, incarnation] = Peer(
            (first, second),
            self._source(arena, places.parameters),
            (arena[places.buffers[0] :][:num_buffers], arena[places.buffers[1] :][:num_buffers]),
            arena[places.parameters + self._start : places.parameters + self._stop],
            arena[places.mean_buffers :][:num_buffers],
        )

    def detach(self, worker: int, incarnation: int) -> None:
        """Let this worker's arena go."""
        self._peers.pop((worker, incarnation), None)
        self._followers.pop((worker, incarnation), None)
        self._stale.drop(worker, incarnation)
        if self._means is not None:
            self._means.drop(worker, incarnation)

    def copy_out(self, worker: int, incarnation: int, *, buffers: bool) -> None:
        """Write the shard's parameters, and the mean buffers if this shard holds them, into a worker's arena."""
        peer = self._peer(worker, incarnation)
        if self._followers.pop((worker, incarnation), None) is None:
            peer.parameters.copy_(self._values)
        if buffers and self._means is not None:
            self._means.copy_to(peer.mean_buffers)

    def follow(self, worker: int, incarnation: int) -> None:
        """Write what the update under way has made, and from now on each of its windows, into a worker's arena: no `copy_out` has to."""
        place = self._peer(worker, incarnation).parameters
        place[: self._done].copy_(self._values[: self._done])
        self._followers[worker, incarnation] = place

    def take_buffers(self, member: Member) -> None:
        """Let a worker's buffers, beside its gradient, count for `buffer_samples` in the means."""
        if self._means is not None:
            contribution = self._peer(member.worker, member.incarnation).buffers[member.buffer]
            self._means.take(member.worker, member.incarnation, contribution, member.buffer_samples)

    # --- an update ----------------------------------------------------------------------------------------

    def gather(self, member: Member) -> None:
        """Add a member's weighted gradient to the accumulator; its buffer is free afterwards."""
        self._reduction.gather(self._term(member))

    def reduce(self, members: tuple[Member, ...], scale: float) -> None:
        """Name the update's gradient: (accumulator + weighted members that are not in it) * scale. Their buffers are read until `apply`."""
        if self._windows and self._reduction.holds != any(member.gathered for member in members):
            raise ProtocolError("a fold and the accumulator of its shard do not agree on which gradients were accepted before")
        self._reduction.begin([self._term(member) for member in members if not member.gathered], scale)

    def square_norm(self) -> float:
        """The squared 2-norm of this shard's part of the gradient that `reduce` named."""
        return self._reduction.square_norm()

    def moved(self) -> float:
        """The squared 2-norm of how far the shard went since the fold's members read it, their mean by weight."""
        return self._stale.moved()

    @torch.no_grad()
    def apply(
        self, *, factor: float, lr_factor: float, hyper: bytes, absent: bytes, measure: bool = False
    ) -> tuple[float, float, float] | None:
        """Step the optimizer with the gradient times `factor` and learning rates times `lr_factor`, this once.

        `hyper` are the groups' settings from now on (msgpack; empty: as they are), `absent` the bitmap of
        parameters that no member has a gradient for. With `measure`: the squared 2-norms of the gradient, of the
        parameters before and of their change.
        """
        self._suspects = []
        self._followers.clear()
        ruler = Ruler(self._change) if measure else None
        if self._stepper is not None:
            if hyper:
                self._stepper.update(hyper)
            self._stepper.mark_absent(absent)
            with self._stepper.scaled(lr=lr_factor, momentum=self._ramp.next_factor()):
                self._step_windows(self._stepper, factor, ruler)
        self._reduction.finish()
        self._stale.finish()
        return None if ruler is None else ruler.squares()

    def _step_windows(self, stepper: Stepper, factor: float, ruler: Ruler | None) -> None:
        """Sum, step, check and hand out one window while the cache holds it, then the next."""
        self._done = 0
        for window in self._windows:
            gradients = self._reduction.gradients(window, factor)
            if self._kept is not None:
                self._kept.settle(window)
            if ruler is not None or self._stale.sees_steps:
                self._change.hold(window)
            if ruler is not None:
                ruler.before(window, gradients)
            stepper.step(window, gradients)
            if self._stale.sees_steps:
                self._stale.stepped(window)
            if ruler is not None:
                ruler.after(window)
            if self._checks(window) and not window.seems_finite():
                self._suspects.append(window)
            self._hand_out(len(self._values) if window is self._windows[-1] else window.stop - self._start)

    def _checks(self, window: Window) -> bool:  # noqa: ARG002
        """Whether it is here that a window is looked at after its step."""
        return True

    def _hand_out(self, done: int) -> None:
        self._place.show(self._start + self._done, self._start + done)
        for place in self._followers.values():
            place[self._done : done].copy_(self._values[self._done : done])
        self._done = done
        if self.on_window is not None:
            self.on_window(done)

    def find_non_finite(self) -> str | None:
        """The name of a parameter that is not finite after the last `apply`."""
        return next((name for window in self._suspects if (name := window.non_finite(self._memory)) is not None), None)

    # --- a change of pace ---------------------------------------------------------------------------------

    def begin(self, pace: Pace) -> None:
        """`pace` is the one that the run begins with."""
        self._stale.set(pace.correction)

    def set_pace(self, pace: Pace, *, ramp_updates: int = 0) -> None:
        """`pace` is in force from the next update on; a `ramp` takes `ramp_updates`, or RAMP_UPDATES when that is 0."""
        self._stale.set(pace.correction)
        self._ramp = Ramp((ramp_updates or RAMP_UPDATES) if pace.momentum == "ramp" else 0)
        if pace.momentum == "zero" and self._stepper is not None:
            self._settle()
            self._stepper.zero_momentum()

    def keep(self) -> None:
        """Keep parameters, optimizer state and mean buffers as they are now, in place of what was kept before."""
        if self._kept is not None:
            self._kept.mark()
        if self._means is not None:
            self._means.keep()

    @torch.no_grad()
    def restore(self) -> None:
        """Go back to what was kept. The accumulator and the workers' buffers are forgotten; settings stay as they are."""
        self._suspects = []
        self._followers.clear()
        self._reduction.finish()
        self._stale.finish()
        if self._kept is not None:
            self._kept.restore()
            self._place.show(self._start, self._stop)
        if self._means is not None:
            self._means.restore()

    def idle(self) -> bool:
        """Copy a window of what is to be kept; returns whether there is more to copy."""
        return self._kept is not None and self._kept.settle_next()

    def _settle(self) -> None:
        if self._kept is not None:
            self._kept.settle_all()

    # --- state --------------------------------------------------------------------------------------------

    def save(self, *, optimizer: bool, buffers: bool = False) -> bytes:
        """This shard's slices of the parameters, and of the optimizer's state if asked, for `state.assemble`.

        With `buffers` also the mean buffers and what no optimizer holds, for `load`.
        """
        parcel = Parcel()
        for slot in self._layout.slots if buffers and self._holds_constants else ():
            if slot.spec.group < 0:
                parcel.add_parameter(slot.index, typed(self._shared, slot.start, slot.stop, slot.spec.dtype).clone())
        for index, values in enumerate(self._means.values if buffers and self._means is not None else ()):
            parcel.add_buffer(index, values)
        for window in self._windows:
            for part in window.parts:
                for slot in part.slots:
                    low, high = part.overlap(slot)
                    parcel.add_parameter(slot.index, part.parameter.detach().view(-1)[low:high])
        if optimizer and self._stepper is not None:
            for index, key, value, sliced in self._stepper.fragments():
                parcel.add_state(index, key, value, sliced=sliced)
        return parcel.encode()

    def load(self, state: bytes | memoryview, *, parameters: bool, optimizer: bool) -> None:
        """Replace parameters (and mean buffers) and optimizer state by this shard's slices of what `state.pack` wrote."""
        self.take(unpack(state), parameters=parameters, optimizer=optimizer)

    @torch.no_grad()
    def take(self, gathered: Gathered, *, parameters: bool, optimizer: bool) -> None:
        """Replace parameters (and mean buffers) and optimizer state by this shard's slices."""
        self._followers.clear()
        self._settle()
        if parameters:
            for slot in self._layout.slots:
                if slot.index in gathered.parameters:
                    self._write(slot, gathered.parameters[slot.index])
            if self._means is not None:
                self._means.replace(gathered.buffers)
        if optimizer and self._stepper is not None:
            self._stepper.restore(gathered.state)

    def _write(self, slot: Slot, values: Tensor) -> None:
        is_constant = slot.spec.group < 0
        low, high = (slot.start, slot.stop) if is_constant else (max(slot.start, self._start), min(slot.stop, self._stop))
        if low >= high or (is_constant and not self._holds_constants):
            return
        place = typed(self._shared if is_constant else self._memory, low, high, slot.spec.dtype)
        first = (low - slot.start) // place.element_size()
        place.copy_(values.reshape(-1)[first : first + place.numel()])
        if not is_constant:
            self._place.show(low, high)

    def _source(self, arena: Tensor, start: int) -> Source:
        """What lies in a worker's arena from `start` on, as the parameters do."""
        return self._place.source(arena[start : start + self._layout.trainable_bytes], self._windows)

    def _term(self, member: Member) -> Term:
        """A member's gradient, corrected if it is stale; to be asked once for each."""
        peer = self._peer(member.worker, member.incarnation)
        return Term(peer.gradients[member.buffer], member.weight, self._stale.correct(member, peer.read))

    def _peer(self, worker: int, incarnation: int) -> Peer:
        peer = self._peers.get((worker, incarnation))
        if peer is None:
            raise ProtocolError(f"worker {worker} (incarnation {incarnation}) has no arena attached at this shard")
        return peer
