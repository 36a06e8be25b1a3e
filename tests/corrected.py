"""Corrections of stale gradients in plain torch: the papers' algorithms at one server, a copy of the model for every worker."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Plain:
    """`correction` is written RULE:STRENGTH; `backup` is what each of `num_workers` has read."""

    def __init__(self, correction: str, model: nn.Module, optimizer: Optimizer, num_workers: int) -> None:
        self.model, self.optimizer = model, optimizer
        self.rule, _, strength = correction.partition(":")
        self.strength = float(strength or 0)
        self.feels_length = isinstance(optimizer, torch.optim.SGD)
        self.backup = {worker: self.values() for worker in range(num_workers)}
        self.squares = {worker: [torch.zeros_like(one) for one in self.values()] for worker in range(num_workers)}
        self.lengths = [torch.zeros_like(one) for one in self.values()]

    def values(self) -> list[Tensor]:
        """A copy of the parameters."""
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def pull(self, worker: int) -> None:
        """A worker reads the newest."""
        self.backup[worker] = self.values()

    def corrected(self, worker: int, gradients: Sequence[Tensor]) -> list[Tensor]:
        """A worker's gradient as the optimizer gets it."""
        before, out = self.values(), []
        for index, (g, now, then) in enumerate(zip(gradients, before, self.backup[worker], strict=True)):
            d = now - then
            if self.rule == "dc":
                out.append(g + self.strength * g * g * d)
            elif self.rule == "dca":
                squares = self.squares[worker][index]
                squares.copy_(0.95 * squares + 0.05 * g * g)
                out.append(g + self.strength / torch.sqrt(squares + 1e-7) * g * g * d)
            elif self.rule == "gap" and self.feels_length:
                out.append(g / self.penalty(d, index))
            else:
                out.append(g)
        return out

    def penalty(self, d: Tensor, index: int) -> Tensor:
        """Gap-aware's divisor of each element."""
        c = self.lengths[index]
        return torch.where(c > 0, 1 + d.abs() / (self.strength * c), torch.ones_like(d))

    def update(self, workers: Sequence[int], gradients: Sequence[Sequence[Tensor]]) -> None:
        """One fold, all members of equal weight."""
        before = self.values()
        parts = [self.corrected(worker, one) for worker, one in zip(workers, gradients, strict=True)]
        factor = self.bound(workers)
        for index, parameter in enumerate(self.model.parameters()):
            parameter.grad = sum(part[index] for part in parts) / len(parts) * (factor if self.feels_length else 1.0)
        group = self.optimizer.param_groups[0]
        rate, group["lr"] = group["lr"], group["lr"] * (1.0 if self.feels_length else factor)
        self.optimizer.step()
        group["lr"] = rate
        for index, (parameter, then) in enumerate(zip(self.model.parameters(), before, strict=True)):
            now = parameter.detach()
            if self.rule == "gap" and not self.feels_length:
                shares = [1 / self.penalty(then - self.backup[worker][index], index) for worker in workers]
                now.copy_(then + (now - then) * sum(shares) / len(shares))
            length, mean = (now - then).abs(), self.lengths[index]
            renewed = torch.where(mean == 0, length, 0.99 * mean + 0.01 * length)
            mean.copy_(torch.where(length == 0, mean, renewed))

    def bound(self, workers: Sequence[int]) -> float:
        """What a step is multiplied by."""
        if self.rule != "bound":
            return 1.0
        moved = [
            sum(float((now - then).square().sum()) for now, then in zip(self.values(), self.backup[worker], strict=True))
            for worker in workers
        ]
        mean = sum(moved) / len(moved)
        return min(1.0, self.strength / mean) if mean else 1.0
