"""The user's optimizer class is found by its name and built again with the groups' own settings."""

import msgspec
import pytest
import torch
from torch import nn, optim

from paceline.errors import UsageError
from paceline.messages import ModelSpec
from paceline.tensors.optimizer import ELEMENTWISE, build_optimizer, is_elementwise, optimizer_class, scales_gradients
from paceline.tensors.spec import spec_of


class Picky(optim.Optimizer):
    def __init__(self, params, lr, secret) -> None:
        super().__init__(params, {"lr": lr})


class Warm(optim.AdamW):
    pass


def rebuilt(optimizer: optim.Optimizer, path: str | None = None, dtype=torch.float32) -> optim.Optimizer:
    model = nn.Module()
    model.weights = nn.ParameterList(p for group in optimizer.param_groups for p in group["params"])
    spec = spec_of(model, optimizer)
    tensors = {group: [torch.zeros(16, dtype=dtype)] for group in range(len(optimizer.param_groups))}
    return build_optimizer(msgspec.structs.replace(spec, optimizer=path or spec.optimizer), tensors)


def weights(count: int = 1) -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(4, 4)) for _ in range(count)]


@pytest.mark.parametrize("cls", sorted(ELEMENTWISE, key=lambda cls: cls.__name__))
def test_an_elementwise_optimizer_gives_each_element_what_it_would_get_alone(cls):
    torch.manual_seed(0)
    start, gradients = torch.randn(6), torch.randn(10, 6)
    whole = nn.Parameter(start.clone())
    alone = [nn.Parameter(value.reshape(1).clone()) for value in start]
    together, apart = cls([whole], lr=0.01), cls(alone, lr=0.01)
    for gradient in gradients:
        whole.grad = gradient.clone()
        for parameter, value in zip(alone, gradient, strict=True):
            parameter.grad = value.reshape(1).clone()
        together.step()
        apart.step()
    assert torch.allclose(whole, torch.cat(alone), rtol=1e-6, atol=0)


def test_every_other_optimizer_of_torch_is_kept_whole():
    classes = {cls for cls in vars(optim).values() if isinstance(cls, type) and issubclass(cls, optim.Optimizer)}
    assert {cls.__name__ for cls in classes if not is_elementwise(cls)} == {"Optimizer", "Adafactor", "LBFGS", "Muon", "SparseAdam"}
    assert not is_elementwise(Warm)


@pytest.mark.parametrize("cls", sorted(ELEMENTWISE, key=lambda cls: cls.__name__))
def test_only_optimizers_that_scale_gradients_feel_their_length(cls):
    torch.manual_seed(0)
    gradient = torch.rand(8) + 0.5
    updates = []
    for factor in (1.0, 2.0):
        parameter = nn.Parameter(torch.zeros(8))
        parameter.grad = gradient * factor
        optimizer = cls([parameter], lr=0.01)
        for _ in range(30):  # RAdam scales for the first few
            optimizer.step()
        updates.append(parameter.detach())
    assert scales_gradients(cls) == bool((updates[1] / updates[0] > 1.9).all())


def test_groups_keep_their_own_settings():
    first, second = weights(2)
    optimizer = rebuilt(optim.AdamW([{"params": [first], "lr": 0.5}, {"params": [second], "betas": (0.5, 0.6)}], lr=0.1, weight_decay=0.3))
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert [group["betas"] for group in optimizer.param_groups] == [(0.9, 0.999), (0.5, 0.6)]
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.3}


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, Warm])
def test_fused_kernels_are_used_where_the_class_has_them(cls):
    assert rebuilt(cls(weights(), lr=0.1)).param_groups[0]["fused"] is True


@pytest.mark.parametrize("flags", [{"fused": False}, {"fused": True}, {"foreach": True}, {"foreach": False}, {"differentiable": True}])
def test_a_users_choice_of_kernels_stays(flags):
    group = rebuilt(optim.Adam(weights(), **flags)).param_groups[0]
    assert {name: group[name] for name in flags} == flags
    assert group["fused"] is flags.get("fused")


def test_momentum_in_bfloat16_is_not_left_to_the_fused_kernel():
    narrow = [nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))]
    assert rebuilt(optim.SGD(narrow, lr=0.1), dtype=torch.bfloat16).param_groups[0]["fused"] is None


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("__main__:Mine", "defined in the script itself"),
        ("no.such.module:Adam", "cannot be imported"),
        ("torch.optim:NoSuch", "cannot be imported"),
        ("torch.optim:lr_scheduler.StepLR", "not an optimizer"),
        ("torch:zeros", "not an optimizer"),
        ("", "cannot be imported"),
        ("torch.optim:LBFGS", "needs a closure"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(path, says):
    with pytest.raises(UsageError, match=says):
        optimizer_class(path)


def test_settings_that_the_class_does_not_take_are_refused():
    spec = ModelSpec((), (), f"{__name__}:Picky", msgspec.msgpack.encode([{"lr": 0.1}]), msgspec.msgpack.encode({"lr": 0.1}), False, False)
    with pytest.raises(UsageError, match=r"cannot be built again from its settings: .*secret"):
        build_optimizer(spec, {0: [torch.zeros(1)]})
