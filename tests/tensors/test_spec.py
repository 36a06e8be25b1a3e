from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from paceline.errors import UsageError
from paceline.logic.partition import first_difference
from paceline.tensors.spec import parameters_of, settings_of, spec_of


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool), persistent=False)


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


def test_parameters_come_in_the_optimizers_order_and_the_rest_after():
    model = Tied()
    optimizer = torch.optim.AdamW([{"params": [model.head.bias], "lr": 0.5}, {"params": [model.embed.weight], "weight_decay": 0.0}], lr=0.1)
    spec = spec_of(model, optimizer)
    assert [(p.name, p.group) for p in spec.parameters] == [("head.bias", 0), ("embed.weight", 1), ("norm.weight", -1), ("norm.bias", -1)]
    found = parameters_of(model, optimizer)
    assert [id(p) for p in found] == [id(p) for p in (model.head.bias, model.embed.weight, model.norm.weight, model.norm.bias)]


def test_a_tied_parameter_is_there_once_with_its_other_names():
    model = Tied()
    spec = spec_of(model, sgd(model))
    tied = next(p for p in spec.parameters if p.name == "embed.weight")
    assert tied.aliases == ("head.weight",)
    assert tied.shape == (5, 3)
    assert [p.name for p in spec.parameters].count("head.weight") == 0


def test_buffers_know_whether_the_state_dict_saves_them():
    model = Tied()
    found = {b.name: (b.dtype, b.saved) for b in spec_of(model, sgd(model)).buffers}
    assert found == {
        "mask": ("bool", False),
        "norm.running_mean": ("float32", True),
        "norm.running_var": ("float32", True),
        "norm.num_batches_tracked": ("int64", True),
    }


def test_a_parameter_that_the_model_does_not_have_gets_a_name():
    model, temperature = nn.Linear(2, 2), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    assert [p.name for p in spec_of(model, optimizer).parameters] == ["weight", "bias", "optimizer.0.2"]


def test_the_optimizer_is_named_by_module_and_class():
    model = nn.Linear(2, 2)
    spec = spec_of(model, torch.optim.AdamW(model.parameters()))
    module, _, name = spec.optimizer.partition(":")
    assert getattr(__import__(module, fromlist=[name]), name) is torch.optim.AdamW
    assert (spec.elementwise, spec.scales_gradients) == (True, False)
    assert spec_of(model, sgd(model)).scales_gradients


def test_settings_are_plain_values_without_the_parameters():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=torch.tensor(0.5), betas=(0.8, 0.9), foreach=False)
    spec = spec_of(model, optimizer)
    (group,) = msgspec.msgpack.decode(spec.groups)
    assert group["lr"] == 0.5
    assert group["betas"] == [0.8, 0.9]
    assert group["foreach"] is False
    assert not group.keys() & {"params", "param_names"}
    assert msgspec.msgpack.decode(spec.arguments)["eps"] == 1e-8
    assert settings_of(optimizer) == [group]


def test_frozen_and_bfloat16_parameters_are_accepted():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    model[0].weight.requires_grad_(False)
    spec = spec_of(model, sgd(model))
    assert [(p.dtype, p.group) for p in spec.parameters] == [("float32", 0)] * 2 + [("bfloat16", 0)] * 2


def test_the_same_script_gives_the_same_spec_and_another_rate_does_not():
    model, other = Tied(), Tied()
    assert first_difference(spec_of(model, sgd(model)), spec_of(other, sgd(other))) is None
    assert first_difference(spec_of(model, sgd(model)), spec_of(other, sgd(other, lr=0.2))) == "the optimizer's settings"


def renamed() -> nn.Module:
    model = nn.Module()
    model.kernel, model.bias = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(3))
    return model


@pytest.mark.parametrize(
    ("other", "optimizer", "told"),
    [
        (renamed, torch.optim.SGD, "parameter weight [3, 2] float32 (group 0) against kernel [3, 2] float32 (group 0)"),
        (lambda: nn.Linear(2, 4), torch.optim.SGD, "parameter weight [3, 2] float32 (group 0) against weight [4, 2] float32 (group 0)"),
        (lambda: nn.Linear(2, 3).bfloat16(), torch.optim.SGD, "weight [3, 2] float32 (group 0) against weight [3, 2] bfloat16 (group 0)"),
        (lambda: nn.Linear(2, 3, bias=False), torch.optim.SGD, "2 parameters against 1"),
        (lambda: nn.Linear(2, 3), torch.optim.Adagrad, "optimizer torch.optim.sgd:SGD against torch.optim.adagrad:Adagrad"),
    ],
)
def test_names_shapes_dtypes_and_the_optimizer_tell_models_apart(other, optimizer, told):
    model, theirs = nn.Linear(2, 3), other()
    assert told in first_difference(spec_of(model, sgd(model)), spec_of(theirs, optimizer(theirs.parameters(), lr=0.1)))


class WithFunction(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.param_groups[0]["warmup"] = len


def refusal(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    with pytest.raises(UsageError) as caught:
        spec_of(model, optimizer)
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64])
def test_a_dtype_that_cannot_be_trained_is_refused(dtype: torch.dtype):
    model = nn.Linear(2, 2).to(dtype)
    sentence = refusal(model, sgd(model))
    assert "parameter weight has dtype" in sentence
    assert "allowed" in sentence or "convert" in sentence


def test_constants_may_have_other_dtypes_but_not_complex():
    model = nn.Module()
    model.weight, model.table = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.float64))
    assert spec_of(model, torch.optim.SGD([model.weight], lr=0.1)).parameters[1].dtype == "float64"
    model.table = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    assert "parameter table has dtype complex64" in refusal(model, torch.optim.SGD([model.weight], lr=0.1))


def test_tensors_without_values_here_are_refused():
    on_meta = nn.Linear(2, 2, device="meta")
    assert "parameter weight is on the meta device" in refusal(on_meta, sgd(on_meta))
    lazy = nn.LazyLinear(2)
    assert "parameter weight is not initialised" in refusal(lazy, sgd(lazy))
    buffered = nn.BatchNorm1d(2)
    buffered.running_mean = torch.zeros(2, device="meta")
    assert "buffer running_mean is on the meta device" in refusal(buffered, sgd(buffered))
    sparse = nn.Linear(2, 2)
    optimizer = sgd(sparse)
    sparse.register_buffer("graph", torch.eye(2).to_sparse())
    assert "buffer graph has the layout torch.sparse_coo" in refusal(sparse, optimizer)


def test_optimizers_that_the_servers_cannot_build_or_step_are_refused():
    class Local(torch.optim.SGD):
        pass

    model = nn.Linear(2, 2)
    assert "Local is defined inside a function" in refusal(model, Local(model.parameters(), lr=0.1))
    in_script = type("Mine", (torch.optim.SGD,), {"__module__": "__main__"})
    assert "Mine is defined in the script itself" in refusal(model, in_script(model.parameters(), lr=0.1))
    hidden = type("SGD", (torch.optim.SGD,), {"__module__": "torch.optim.sgd"})
    assert "is not the class that its module has" in refusal(model, hidden(model.parameters(), lr=0.1))
    assert "LBFGS needs a closure" in refusal(model, torch.optim.LBFGS(model.parameters()))


class Unrepeatable(torch.optim.SGD):
    def __init__(self, params, secret):
        assert secret
        super().__init__(params, lr=0.1)


def test_an_optimizer_that_cannot_be_built_from_its_settings_is_refused_here_already():
    model = nn.Linear(2, 2)
    assert "cannot be built again from its settings" in refusal(model, Unrepeatable(model.parameters(), secret=True))


def test_an_optimizer_for_matrices_is_accepted():
    model = nn.Linear(2, 2, bias=False)
    assert not spec_of(model, torch.optim.Muon(model.parameters())).elementwise


def test_a_setting_that_is_not_plain_is_named():
    model = nn.Linear(2, 2)
    assert "setting warmup of param group 0" in refusal(model, WithFunction(model.parameters()))


def test_two_parameters_in_one_memory_are_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.data = model[0].weight.data
    assert "parameters 0.weight and 1.weight are two tensors in the same memory" in refusal(model, sgd(model))


def test_a_parameter_that_is_twice_in_the_optimizer_is_refused():
    model = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = torch.optim.SGD([model.weight, model.weight], lr=0.1)
    assert "parameter weight is in the optimizer twice" in refusal(model, optimizer)


def on(*devices: str) -> nn.ParameterList:
    """Parameters of no values, on devices that need not exist."""
    with FakeTensorMode():
        return nn.ParameterList([nn.Parameter(torch.empty(2, 2, device=device)) for device in devices])


def test_a_device_that_is_not_there_is_refused():
    model = on("cuda:0")
    assert "parameter 0 is on cuda:0, which is not supported here; allowed: cpu" in refusal(model, sgd(model))


def test_a_model_on_several_devices_is_refused(monkeypatch: pytest.MonkeyPatch):
    spread, half = on("cuda:1", "cuda:0"), on("cuda:0")
    half.register_buffer("scale", torch.ones(1))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    assert "parameter 1 is on cuda:0, but parameter 0 on cuda:1; a model on several devices" in refusal(spread, sgd(spread))
    assert "buffer scale is on cpu, but parameter 0 on cuda:0" in refusal(half, sgd(half))


def test_servers_choose_their_own_kernels_for_a_model_on_a_device():
    model = on("cuda:0")
    fused = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    (settings,) = settings_of(fused)
    assert (settings["fused"], settings["foreach"], settings["capturable"]) == (None, None, False)
    (here,) = settings_of(torch.optim.AdamW(nn.Linear(2, 2).parameters(), fused=True))
    assert here["fused"] is True
