"""A run without processes: workers' arenas and shards in one place, next to plain torch on the joined batch."""

import copy
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from paceline.logic.partition import arena_map, layout_of, parameter_arena_bytes
from paceline.messages import Member
from paceline.tensors.shard import Shard
from paceline.tensors.spec import parameters_of, settings_of, spec_of
from paceline.tensors.storage import tensor_at

Gradients = Sequence[Tensor | None]


class Matrix(Optimizer):
    """An optimizer that looks at whole matrices: steps of unit norm, with a momentum and a plain counter; it writes its gradients."""

    def __init__(self, params, lr: float = 0.1, momentum: float = 0.5) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["calls"] = state.get("calls", 0) + 1
                rows = parameter.grad.flatten(1) if parameter.dim() > 1 else parameter.grad
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(group["momentum"]).add_(parameter.grad.div_(rows.norm() + 1e-3))
                parameter.sub_(momentum, alpha=group["lr"])


OPTIMIZERS = {
    "sgd": partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "plain sgd": partial(optim.SGD, lr=0.1),
    "adam": partial(optim.Adam, lr=1e-2, weight_decay=1e-3),
    "adamw": partial(optim.AdamW, lr=1e-2, weight_decay=0.1),
    "amsgrad": partial(optim.AdamW, lr=1e-2, amsgrad=True),
    "adadelta": partial(optim.Adadelta, lr=1.0),
    "adagrad": partial(optim.Adagrad, lr=0.05, initial_accumulator_value=0.1),
    "rmsprop": partial(optim.RMSprop, lr=1e-3, momentum=0.9, centered=True),
    "nadam": partial(optim.NAdam, lr=1e-2),
    "radam": partial(optim.RAdam, lr=1e-2),
    "adamax": partial(optim.Adamax, lr=1e-2),
    "asgd": partial(optim.ASGD, lr=0.05),
    "adafactor": partial(optim.Adafactor, lr=1e-2),
    "matrix": Matrix,
}


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, 5))


def groups_of(model: nn.Module) -> list[dict]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    return [{"params": matrices}, {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 0.02}]


class Job:
    """`num_workers` arenas and `num_shards` shards of `model` and `optimizer`, which stay as they are."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, num_shards: int = 1, num_workers: int = 1, **settings) -> None:
        self.model = copy.deepcopy(model)
        self.spec = spec_of(model, optimizer)
        self.layout = layout_of(self.spec)
        self.memory = torch.zeros(parameter_arena_bytes(self.layout)[1], dtype=torch.uint8)
        self.views = {slot.index: tensor_at(self.memory, slot.start, slot.spec) for slot in self.layout.slots}
        for index, parameter in enumerate(parameters_of(model, optimizer)):
            self.views[index].copy_(parameter.detach())
        self.arenas = [torch.zeros(arena_map(self.layout).size_bytes, dtype=torch.uint8) for _ in range(num_workers)]
        self.shards = [Shard(self.spec, shard, num_shards, self.memory, **settings) for shard in range(num_shards)]
        for shard in self.shards:
            for worker, arena in enumerate(self.arenas):
                shard.attach(worker, 0, arena)

    def gradients_of(self, loss_of: Callable[[nn.Module], Tensor]) -> list[Tensor | None]:
        """The gradients of a loss at the shards' parameters, by index."""
        parameters = dict(self.model.named_parameters())
        for index, spec in enumerate(self.spec.parameters):
            parameters[spec.name].data.copy_(self.views[index])
        self.model.zero_grad()
        loss_of(self.model).backward()
        return [parameters[spec.name].grad if spec.group >= 0 else None for spec in self.spec.parameters]

    def write(self, worker: int, gradients: Gradients, buffer: int = 0) -> bytes:
        """Put gradients into an arena; returns the bitmap of the absent ones."""
        start = arena_map(self.layout).gradients[buffer]
        absent = bytearray(-(-len(gradients) // 8))
        for slot in self.layout.slots:
            gradient = gradients[slot.index]
            if slot.spec.group >= 0:
                tensor_at(self.arenas[worker], start + slot.start, slot.spec).copy_(torch.zeros(()) if gradient is None else gradient)
            if gradient is None:
                absent[slot.index >> 3] |= 1 << (slot.index & 7)
        return bytes(absent) if any(absent) else b""

    def pull(self, worker: int) -> None:
        """Copy the parameters of every shard into a worker's arena."""
        for shard in self.shards:
            shard.copy_out(worker, 0, buffers=False)

    def fold(self, members: tuple[Member, ...], *, scale=1.0, lr_factor=1.0, hyper=b"", absent=b"", clip=0.0) -> None:
        """One update at every shard."""
        for shard in self.shards:
            shard.reduce(members, scale)
        factor = 1.0
        if clip:
            norm = sum(shard.square_norm() for shard in self.shards) ** 0.5
            factor = min(1.0, clip / (norm + 1e-6))
        for shard in self.shards:
            shard.apply(factor=factor, lr_factor=lr_factor, hyper=hyper, absent=absent)

    def update(self, gradients: Sequence[Gradients], **settings) -> None:
        """One sync update from every worker's gradients."""
        weight = 1.0 / len(gradients)
        masks = [self.write(worker, one) for worker, one in enumerate(gradients)]
        absent = bytes(map(int.__and__, *masks)) if len(masks) == 2 else masks[0]
        self.fold(tuple(Member(worker, 0, 0, 0, weight) for worker in range(len(gradients))), absent=absent, **settings)

    def distance(self, model: nn.Module) -> float:
        """The largest relative 2-norm distance of a tensor from the same one in `model`."""
        theirs = dict(model.named_parameters())
        pairs = [(self.views[index].double(), theirs[spec.name].detach().double()) for index, spec in enumerate(self.spec.parameters)]
        return max(float((ours - other).norm() / other.norm().clamp(min=1e-12)) for ours, other in pairs)

    def equals(self, model: nn.Module) -> bool:
        """Whether all parameters are bitwise those of `model`."""
        theirs = dict(model.named_parameters())
        return all(torch.equal(self.views[index], theirs[spec.name].detach()) for index, spec in enumerate(self.spec.parameters))


def hyper_of(optimizer: Optimizer) -> bytes:
    """The settings of an optimizer as a fold carries them."""
    return msgspec.msgpack.encode(settings_of(optimizer))
