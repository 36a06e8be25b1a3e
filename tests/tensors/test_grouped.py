"""Gradients that a group sums: what is brought where, and what becomes of it when the script changes them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from paceline.tensors.grouped import GroupedGradients
from paceline.tensors.whole import WholeShard
from paceline.tensors.window import PIECE_ELEMENTS
from replicas import Bench, batch, bench_of, loss_of, mlp, norm_of, same

EVERYTHING = (0, 1 << 30)


class Grouped:
    """A replica in a group, with the shard that sums its gradients."""

    def __init__(self, dtype: torch.dtype = torch.float32, device: torch.device | None = None, model: nn.Module | None = None) -> None:
        self.bench: Bench = bench_of(mlp(dtype) if model is None else model.to(dtype))
        replica = self.bench.replica
        self.shard = WholeShard(replica._spec, replica.hold(), 0, self.bench.arena, device=device)
        replica.live_in(self.shard.lend_parameters(), near=True)
        replica.point("whole")
        self.heard: list[tuple[int, int]] = []
        self.gradients: GroupedGradients = replica.enter_group(lambda first, past: self.heard.append((first, past)))
        self.is_near = self.gradients.sum_into(self.shard.places())

    def backward(self, seed: int = 1) -> None:
        loss_of(self.bench.model, batch(next(self.bench.model.parameters()).dtype, seed)).backward()

    def own(self) -> dict[str, Tensor]:
        return {name: one.grad.clone() for name, one in self.bench.model.named_parameters() if one.grad is not None}

    def summed(self) -> dict[str, Tensor]:
        named = list(self.bench.model.named_parameters())
        return {name: place.view(one.shape).clone() for (name, one), place in zip(named, self.shard.places(), strict=True)}

    def norm(self) -> float:
        return self.bench.replica.finish_gradient().norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_places_hold_the_gradient_times_its_weight_in_float32(dtype: torch.dtype) -> None:
    one = Grouped(dtype)
    one.backward()
    assert one.norm() == pytest.approx(norm_of(one.own()), rel=1e-6)
    one.gradients.bring(*EVERYTHING, 3.0)
    assert same(one.summed(), {name: 3.0 * value.float() for name, value in one.own().items()})
    padding = one.shard.summed(0).double().square().sum() - sum(value.double().square().sum() for value in one.summed().values())
    assert abs(float(padding)) < 1e-9
    one.gradients.clear(*EVERYTHING)
    assert not one.shard.summed(0).any()


def test_what_was_brought_is_brought_again_only_when_it_has_to_be() -> None:
    one = Grouped()
    one.backward()
    one.gradients.bring(*EVERYTHING, 2.0)
    place = one.shard.places()[0]
    place.fill_(7.0)
    one.gradients.bring(*EVERYTHING, 2.0)
    assert bool((place == 7.0).all())
    one.gradients.forget()
    one.gradients.bring(*EVERYTHING, 2.0)
    assert same(one.summed(), {name: 2.0 * value for name, value in one.own().items()})
    one.gradients.bring(*EVERYTHING, 5.0)
    assert same(one.summed(), {name: 5.0 * value for name, value in one.own().items()})


def test_zeros_too_are_written_once_for_some_of_them_may_be_on_their_way() -> None:
    one = Grouped()
    one.backward()
    one.bench.model[2].bias.grad = None
    for again in (lambda: one.gradients.bring(*EVERYTHING, 2.0), lambda: one.gradients.clear(*EVERYTHING)):
        one.gradients.forget()
        again()
        place = one.shard.places()[3]
        assert not place.any()
        place.fill_(7.0)  # a neighbour's bucket has it and is being summed
        again()
        assert bool((place == 7.0).all())


def test_a_new_group_is_given_what_a_former_one_was() -> None:
    one = Grouped()
    one.backward()
    one.norm()
    one.gradients.bring(*EVERYTHING, 1.0)
    one.shard.meet((0, 1))
    one.shard.meet((0, 1))
    one.gradients.sum_into(one.shard.places())
    one.gradients.bring(*EVERYTHING, 1.0)
    assert same(one.summed(), one.own())


@pytest.mark.parametrize("deed", ["mul_", "data", "signs", "order", "part", "replace", "strides"])
def test_what_the_script_changes_behind_the_backward_pass_is_what_is_summed(deed: str) -> None:
    one = Grouped()
    one.backward()
    one.gradients.bring(*EVERYTHING, 1.0)
    weight = one.bench.model[0].weight
    match deed:
        case "mul_":
            weight.grad.mul_(0.5)
        case "data":
            weight.grad.data.mul_(0.5)
        case "signs":
            weight.grad.data.neg_()
        case "order":
            weight.grad.data.copy_(weight.grad.flip(0))
        case "part":
            weight.grad.data[-1, -1] += 1.0
        case "replace":
            weight.grad = torch.full_like(weight, 0.25)
        case _:
            weight.grad = torch.arange(35.0).view(7, 5).t()
    told = len(one.heard)
    gradient = one.bench.replica.finish_gradient()
    assert gradient.touched
    assert gradient.norm == pytest.approx(norm_of(one.own()), rel=1e-6)
    assert one.heard[told:] == [(0, 140)]
    one.gradients.bring(*EVERYTHING, 1.0)
    assert same(one.summed(), one.own())
    assert not one.bench.replica.finish_gradient().touched  # each change is told of once


@pytest.mark.parametrize("set_to_none", [True, False])
def test_every_gradient_is_heard_of_once_in_a_step(set_to_none: bool) -> None:
    one = Grouped()
    for step in range(3):
        one.bench.model.zero_grad(set_to_none=set_to_none)
        one.heard.clear()
        one.backward(step)
        gradient = one.bench.replica.finish_gradient()
        assert (len(one.heard), len(set(one.heard)), gradient.touched) == (4, 4, False)
        one.gradients.bring(*EVERYTHING, 1.0)
        assert same(one.summed(), one.own())
        one.gradients.forget()
        one.bench.replica.flip(0, keep=True)


def test_gradients_accumulate_as_in_plain_torch() -> None:
    one = Grouped()
    one.backward(1)
    one.gradients.bring(*EVERYTHING, 1.0)
    one.backward(2)
    assert one.norm() == pytest.approx(norm_of(one.own()), rel=1e-6)
    one.gradients.bring(*EVERYTHING, 1.0)
    assert same(one.summed(), one.own())


def test_one_that_is_absent_is_summed_as_zeros() -> None:
    one = Grouped()
    one.backward()
    one.gradients.bring(*EVERYTHING, 1.0)
    one.bench.model[2].bias.grad = None
    gradient = one.bench.replica.finish_gradient()
    assert gradient.absent == bytes([0b1000])
    assert gradient.norm == pytest.approx(norm_of(one.own()), rel=1e-6)
    one.gradients.bring(*EVERYTHING, 1.0)
    assert not one.summed()["2.bias"].any()


@pytest.mark.parametrize(("value", "norm"), [(float("nan"), "nan"), (float("inf"), "inf"), (1e30, "1e+30")])
def test_numbers_too_large_or_none_at_all_are_told_by_the_norm_and_change_nothing(value: float, norm: str) -> None:
    one = Grouped()
    one.backward()
    one.bench.model[0].weight.grad = torch.zeros(5, 7)
    one.bench.model[0].weight.grad[0, 0] = value
    first, again = (one.bench.replica.finish_gradient() for _ in range(2))
    assert f"{first.norm:.3g}" == f"{again.norm:.3g}" == norm
    assert (first.touched, again.touched) == (True, False)


def test_nothing_holds_on_to_a_gradient_that_the_script_drops() -> None:
    one = Grouped()
    one.backward()
    one.gradients.bring(*EVERYTHING, 1.0)
    one.norm()
    gone = weakref.ref(one.bench.model[0].weight.grad)
    one.bench.replica.flip(0, keep=True)
    one.bench.model.zero_grad()
    assert gone() is None


def test_parameters_may_be_the_private_ones_once_more_before_they_are_those_of_the_shard() -> None:
    one = Grouped()
    replica, lent = one.bench.replica, one.shard.lend_parameters()
    replica.live_in(lent, near=True)
    replica.point("private")  # the group has met in a conversation that read nothing of it
    replica.point("whole")
    assert all(parameter.data_ptr() == mine.data_ptr() for parameter, mine in zip(one.bench.model.parameters(), lent, strict=True))


def test_who_leaves_a_group_lets_go_of_all_that_was_summed() -> None:
    one = Grouped()
    one.backward()
    one.gradients.bring(*EVERYTHING, 1.0)
    shard, place = weakref.ref(one.shard), weakref.ref(one.shard.places()[0].untyped_storage())
    one.bench.replica.leave_group()
    del one.shard
    gc.collect()
    assert (shard(), place()) == (None, None)


def test_parameters_larger_than_a_piece_and_empty_ones_are_brought_and_measured() -> None:
    one = Grouped(torch.bfloat16, model=nn.ParameterList([torch.zeros(0), torch.ones(PIECE_ELEMENTS + 1), torch.zeros(0), torch.ones(3)]))
    sum((p.float().square() * torch.arange(p.numel())).sum() for p in one.bench.model).backward()
    one.gradients.bring(*EVERYTHING, 0.5)
    assert one.norm() == pytest.approx(norm_of(one.own()), rel=1e-5)
    assert same(one.summed(), {name: 0.5 * value.float() for name, value in one.own().items()})


def test_what_is_summed_elsewhere_is_told_to_be() -> None:
    assert Grouped().is_near
    one = Grouped(device=torch.device("cpu"))  # a device that is the CPU: the shard's memory is a copy all the same
    one.backward()
    one.gradients.bring(*EVERYTHING, 2.0)
    assert same(one.summed(), {name: 2.0 * value for name, value in one.own().items()})


def test_who_leaves_a_group_has_its_gradient_in_the_arena_and_goes_on_there() -> None:
    one = Grouped()
    one.backward()
    one.norm()
    assert not any(value.any() for value in one.bench.published(0).values())
    one.bench.replica.leave_group()
    assert same(one.bench.published(0), one.own())
    one.bench.replica.flip(1, keep=True)
    one.bench.model.zero_grad()
    told = len(one.heard)
    one.backward(2)
    assert one.norm() == pytest.approx(norm_of(one.own()), rel=1e-6)
    assert same(one.bench.published(1), one.own())
    assert len(one.heard) == told
