"""A worker's gradients where they are on a device: copied into its arena as they come, measured where they are.

`.grad` stays what torch makes it. Copies during a backward pass are a guess that the script leaves gradients alone
afterwards: what it changed is copied again when the gradient is collected, and from the first such miss on all is
copied only then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.logic.partition import Layout, arena_map
from paceline.tensors.hooked import NO_GRADIENT, AllHooked, Gradient, Hooked, Seen
from paceline.tensors.memory import bitmap_of
from paceline.tensors.staging import Staging
from paceline.tensors.storage import tensor_at


class StagedGradient(Hooked):
    """The gradient of one parameter on a device, and its place in both buffers.

    `is_eager`: it is brought by the hook that is the last one of a step, as far as the step before tells. `is_probe`: what
    is brought is kept on the device too. Until the next flip it holds on to the tensors that it saw, so that one that
    torch makes anew is never taken for them.
    """

    def __init__(self, index: int, name: str, parameter: Tensor, views: tuple[Tensor, Tensor], staging: Staging) -> None:
        super().__init__(index, name, parameter)
        self.is_eager = self.is_probe = False
        self._views = views
        self._staging = staging
        self._current = 0
        self._arrived: Seen | None = None
        self._brought: Seen | None = None
        self._kept: Tensor | None = None
        self._num_arrivals, self._usual_arrivals = 0, 1
        self._zero = [True, True]  # a new arena holds zeros

    def flip(self, buffer: int) -> None:
        """Work in `buffer` from now on."""
        self._current = buffer
        self._arrived = self._brought = self._kept = None
        self._num_arrivals, self._usual_arrivals = 0, max(1, self._num_arrivals)

    def catch_up(self, gradient: Tensor, *, again: bool) -> bool:
        """Begin to bring what is not in the current buffer yet, or `again`; whether the script changed it after backward."""
        self.watch()
        if again or self._brought is None or not self._brought.is_still(gradient):
            self._bring(gradient)
        return self._arrived is not None and not self._arrived.is_still(gradient)

    @property
    def is_brought(self) -> bool:
        """Whether a gradient was brought since the last flip."""
        return self._brought is not None

    def keep(self, gradient: Tensor) -> None:
        """Keep what was brought."""
        self._kept = gradient.detach().clone()

    def is_as_brought(self, gradient: Tensor) -> bool | None:
        """Whether it is, number by number, what was brought. None: its version says no, or nothing was kept."""
        if self._kept is None or self._brought is None or not self._brought.is_still(gradient):
            return None
        return torch.allclose(gradient, self._kept, rtol=0.0, atol=0.0, equal_nan=True)

    def clear(self) -> None:
        """There is no gradient; everything begun has been waited for."""
        if not self._zero[self._current]:
            self._views[self._current].zero_()
            self._zero[self._current] = True

    def _arrive(self, _: Tensor) -> None:
        gradient = self.parameter.grad
        assert gradient is not None
        self.check(gradient)
        self._num_arrivals += 1
        self._arrived = Seen.now(gradient)
        if self.is_eager and self._num_arrivals >= self._usual_arrivals:
            self._bring(gradient)

    def _bring(self, gradient: Tensor) -> None:
        self._staging.bring([(self._views[self._current], gradient.detach())])
        self._brought = Seen.now(gradient)
        self._zero[self._current] = False
        if self.is_probe:
            self.keep(gradient)


Present = list[tuple[StagedGradient, Tensor]]
"""Who has a gradient, and it."""


class StagedGradients(AllHooked[StagedGradient]):
    """The gradients of all trainable parameters of a model on a device; the arena's two buffers hold what is published.

    Their norm is the device's: one pass over memory that is many times faster than the one that the copies go to.
    """

    def __init__(self, layout: Layout, parameters: Sequence[Tensor], arena: Tensor, staging: Staging) -> None:
        super().__init__()
        self._staging = staging
        self._num_parameters = len(parameters)
        self._has_missed = False
        for slot in layout.trained:
            first, second = (tensor_at(arena, start + slot.start, slot.spec) for start in arena_map(layout).gradients)
            self._slots.append(StagedGradient(slot.index, slot.spec.name, parameters[slot.index], (first, second), staging))

    def flip(self, buffer: int, *, keep: bool) -> None:  # noqa: ARG002 - what servers read is the copy
        """The next gradient goes into `buffer`; `.grad` is the script's to keep or to drop."""
        for slot in self._slots:
            slot.flip(buffer)

    def take_back(self) -> None:
        """Somebody else has seen to what backward passes have made; bring what there is into the current buffer."""
        if any(slot.parameter.grad is not None for slot in self._slots):
            self.collect()

    @torch.no_grad()
    def collect(self) -> Gradient:
        """The gradient as it is now, complete in the current buffer. Raises UsageError when there is none at all.

        May be called again, after the script changed it further.
        """
        present = [(slot, slot.parameter.grad) for slot in self._slots if slot.parameter.grad is not None]
        if not present:
            raise UsageError(NO_GRADIENT)
        for slot, gradient in present:
            slot.check(gradient)
        norms = _norms([gradient for _, gradient in present])
        rewritten = self._looks_rewritten(present, norms)
        touched = rewritten is True
        for slot, gradient in present:
            touched |= slot.catch_up(gradient, again=rewritten is not False)
        self._staging.wait()
        absent = [slot for slot in self._slots if slot.parameter.grad is None]
        for slot in absent:
            slot.clear()
        self._has_missed |= touched
        self._guess(present, norms)
        return Gradient(math.hypot(*norms), bitmap_of([slot.index for slot in absent], self._num_parameters), touched)

    def _looks_rewritten(self, present: Present, norms: list[float]) -> bool | None:
        """Whether what was brought was then written past its version counters, as GradScaler.unscale_ does; None: it cannot be told.

        A copy may have seen that or not, so the probe's gradient is held against what it was. One of zeros tells nothing.
        """
        if not any(slot.is_brought for slot, _ in present):
            return False
        for (slot, gradient), norm in zip(present, norms, strict=True):
            if slot.is_probe and norm:
                same = slot.is_as_brought(gradient)
                return None if same is None else not same
        return None

    def _guess(self, present: Present, norms: list[float]) -> None:
        """Choose the probe, the smallest gradient that is not zero, if there is none now; then hooks may bring the next ones."""
        candidates = [one for one, norm in zip(present, norms, strict=True) if norm and math.isfinite(norm)]
        if not any(slot.is_probe for slot, _ in candidates):
            probe = min(candidates, key=lambda one: one[1].numel(), default=None)
            for slot in self._slots:
                slot.is_probe = probe is not None and slot is probe[0]
            if probe is not None:
                probe[0].keep(probe[1])
        is_eager = bool(candidates) and not self._has_missed
        for slot in self._slots:
            slot.is_eager = is_eager


def _norms(gradients: list[Tensor]) -> list[float]:
    """Their 2-norms, summed in float64, which holds the square of every float32; this waits for what the device computes."""
    # One launch for all, as in torch.nn.utils.get_total_norm; nothing public gives the norm of each.
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float64)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return torch.stack(norms).tolist()
