from __future__ import annotations

import math
import warnings

import msgspec
import pytest
import torch
from torch import nn

from paceline.errors import UsageError
from paceline.logic.partition import arena_map, layout_of, parameter_arena_bytes
from paceline.tensors.replica import Replica
from paceline.tensors.spec import spec_of
from paceline.tensors.storage import tensor_at
from replicas import batch, bench_of, loss_of, mlp, norm_of, plain_gradients, pretend, same

torch.set_num_threads(1)


@pytest.fixture(autouse=True, params=["on the cpu", "on a device"])
def is_staged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether copies are made between the model and shared memory."""
    if request.param == "on a device":
        pretend(monkeypatch)
    return request.param == "on a device"


# --- gradients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_backward_pass_leaves_its_gradient_in_the_arena_and_grad_points_there(dtype: torch.dtype, is_staged: bool):
    wanted = plain_gradients(mlp(dtype), batch(dtype))
    bench = bench_of(mlp(dtype))
    loss_of(bench.model, batch(dtype)).backward()
    assert is_staged or same(bench.published(0), wanted)
    gradient = bench.replica.finish_gradient()
    assert same(bench.published(0), wanted)
    assert gradient.norm == pytest.approx(norm_of(wanted), rel=1e-6)
    assert (gradient.absent, gradient.touched) == (b"", False)
    first = bench.arena.data_ptr()
    assert all((first <= p.grad.data_ptr() < first + bench.arena.numel()) != is_staged for p in bench.model.parameters())
    assert same({name: p.grad for name, p in bench.model.named_parameters()}, wanted)


def test_what_is_written_is_told_once_with_the_backward_pass_and_again_when_it_has_changed(is_staged: bool):
    if is_staged:
        return  # copies from a device come later, and are nobody's to send on before
    bench = bench_of(mlp())
    heard: list[tuple[int, int]] = []
    bench.replica.tell_of_gradients(lambda first, past: heard.append((first, past)))
    layout = layout_of(spec_of(bench.model, bench.optimizer))
    slots = [slot for slot in layout.slots if slot.spec.group >= 0]
    spans = sorted((slot.start, slot.stop) for slot in slots)

    def told() -> list[tuple[int, int]]:
        spans = sorted(heard)
        heard.clear()
        return spans

    loss_of(bench.model, batch()).backward()
    assert told() == spans
    bench.replica.finish_gradient()
    assert told() == []
    loss_of(bench.model, batch()).backward()
    assert told() == spans
    first = next(bench.model.parameters())
    first.grad.mul_(2.0)
    bench.replica.finish_gradient()
    assert told() == [next((slot.start, slot.stop) for slot in slots if slot.index == 0)]
    nn.utils.clip_grad_norm_(bench.model.parameters(), 1e-3)
    bench.replica.finish_gradient()
    assert told() == spans
    first.grad = None
    bench.replica.finish_gradient()
    assert len(told()) == 1
    first.grad = torch.ones_like(first)
    bench.replica.finish_gradient()
    assert len(told()) == 1


def test_steps_alternate_between_the_buffers():
    bench = bench_of(mlp())
    first, second = (plain_gradients(mlp(), batch(seed=seed)) for seed in (1, 2))
    loss_of(bench.model, batch(seed=1)).backward()
    bench.replica.finish_gradient()
    bench.replica.flip(1)
    bench.optimizer.zero_grad()
    loss_of(bench.model, batch(seed=2)).backward()
    assert bench.replica.finish_gradient().norm == pytest.approx(norm_of(second), rel=1e-6)
    assert same(bench.published(0), first)
    assert same(bench.published(1), second)


def test_two_backward_passes_accumulate_and_do_not_count_as_touched():
    wanted = plain_gradients(mlp(), batch(seed=1), batch(seed=2))
    bench = bench_of(mlp())
    for seed in (1, 2):
        loss_of(bench.model, batch(seed=seed)).backward()
    gradient = bench.replica.finish_gradient()
    assert same(bench.published(0), wanted)
    assert gradient.norm == pytest.approx(norm_of(wanted), rel=1e-6)
    assert not gradient.touched


@pytest.mark.parametrize("keep", [True, False])
def test_zeroing_in_place_never_writes_the_other_buffer(keep: bool):
    bench = bench_of(mlp())
    for step in range(4):
        buffer = step % 2
        wanted = plain_gradients(mlp(), batch(seed=step))
        before = bench.published(1 - buffer)
        bench.optimizer.zero_grad(set_to_none=False)
        if not keep:
            assert same(bench.published(1 - buffer), before)
        loss_of(bench.model, batch(seed=step)).backward()
        gradient = bench.replica.finish_gradient()
        assert same(bench.published(buffer), wanted)
        assert gradient.norm == pytest.approx(norm_of(wanted), rel=1e-6)
        bench.replica.flip(1 - buffer, keep=keep)


def test_a_kept_gradient_may_be_looked_at_and_accumulated_into():
    wanted = plain_gradients(mlp(), batch(seed=1), batch(seed=2))
    bench = bench_of(mlp())
    loss_of(bench.model, batch(seed=1)).backward()
    bench.replica.finish_gradient()
    bench.replica.flip(1, keep=True)
    assert same({name: p.grad for name, p in bench.model.named_parameters()}, plain_gradients(mlp(), batch(seed=1)))
    loss_of(bench.model, batch(seed=2)).backward()
    bench.replica.finish_gradient()
    assert same(bench.published(1), wanted)


def test_a_kept_gradient_without_a_new_backward_pass_is_published_again():
    wanted = plain_gradients(mlp(), batch())
    bench = bench_of(mlp())
    loss_of(bench.model, batch()).backward()
    norm = bench.replica.finish_gradient().norm
    bench.replica.flip(1, keep=True)
    assert bench.replica.finish_gradient() == (norm, b"", False)
    assert same(bench.published(1), wanted)


def test_without_keep_the_gradient_is_dropped_where_it_is_the_arenas(is_staged: bool):
    bench = bench_of(mlp())
    loss_of(bench.model, batch()).backward()
    bench.replica.finish_gradient()
    bench.replica.flip(1)
    assert all((p.grad is None) != is_staged for p in bench.model.parameters())


def test_a_tied_parameter_gets_the_sum_of_its_uses():
    def tied() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 7))
        model[2].weight = model[0].weight
        return model

    wanted = plain_gradients(tied(), batch())
    bench = bench_of(tied())
    loss_of(bench.model, batch()).backward()
    bench.replica.finish_gradient()
    assert same(bench.published(0), wanted)


def test_a_large_parameter_is_copied_and_measured_in_pieces():
    torch.manual_seed(0)
    model = nn.Linear(700, 500)
    bench = bench_of(model)
    x = torch.randn(3, 700)
    model(x).square().sum().backward()
    wanted = {"weight": model.weight.grad.clone(), "bias": model.bias.grad.clone()}
    gradient = bench.replica.finish_gradient()
    assert same(bench.published(0), wanted)
    assert gradient.norm == pytest.approx(norm_of(wanted), rel=1e-6)


def test_the_gradient_of_an_unused_or_frozen_parameter_is_absent_and_zero():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)])
    model[2].requires_grad_(False)
    bench = bench_of(model)
    x = torch.ones(1, 2)
    (model[0](x) + model[1](x)).sum().backward()
    assert bench.replica.finish_gradient().absent == bytes([0b110000])
    bench.replica.flip(1)
    bench.optimizer.zero_grad()
    model[0](x).sum().backward()
    assert bench.replica.finish_gradient().absent == bytes([0b111100])
    bench.replica.flip(0)
    bench.optimizer.zero_grad()
    model[1](x).sum().backward()
    gradient = bench.replica.finish_gradient()
    published = bench.published(0)
    assert gradient.absent == bytes([0b110011])
    assert gradient.norm == pytest.approx(norm_of(published), rel=1e-6)
    assert not published["0.weight"].any()
    assert published["1.weight"].any()


def test_a_parameter_that_thaws_is_hooked_from_then_on(is_staged: bool):
    model = mlp()
    model[0].requires_grad_(False)
    bench = bench_of(model)
    model[0].requires_grad_(True)
    for step in range(3):
        bench.optimizer.zero_grad()
        loss_of(model, batch(seed=step)).backward()
        wanted = plain_gradients(mlp(), batch(seed=step))
        bench.replica.finish_gradient()
        assert same(bench.published(step % 2), wanted)
        bench.replica.flip(1 - step % 2, keep=True)
    first = bench.arena.data_ptr()
    assert is_staged or first <= model[0].weight.grad.data_ptr() < first + bench.arena.numel()


@pytest.mark.parametrize("foreach", [True, False])
def test_torchs_own_clipping_is_noticed_and_measured_again(foreach: bool):
    bench = bench_of(mlp())
    loss_of(bench.model, batch()).backward()
    full = bench.replica.local_norm()
    total = nn.utils.clip_grad_norm_(bench.model.parameters(), full / 4, foreach=foreach)
    assert full == pytest.approx(float(total), rel=1e-5)
    gradient = bench.replica.finish_gradient()
    assert gradient.touched
    assert gradient.norm == pytest.approx(full / 4, rel=1e-5)
    assert gradient.norm == pytest.approx(norm_of(bench.published(0)), rel=1e-6)


def test_unscaling_is_noticed_though_it_moves_no_version_counter():
    wanted = norm_of(plain_gradients(mlp(), batch()))
    bench = bench_of(mlp())
    loss_of(bench.model, batch()).backward()  # a device copies nothing during the first backward pass
    bench.replica.finish_gradient()
    bench.replica.flip(1)
    bench.optimizer.zero_grad()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(bench.model, batch())).backward()
    scaler.unscale_(bench.optimizer)
    gradient = bench.replica.finish_gradient()
    assert gradient.norm == pytest.approx(wanted, rel=1e-5)
    assert norm_of(bench.published(1)) == pytest.approx(wanted, rel=1e-5)
    assert gradient.touched


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_the_scripts_default_dtype_changes_nothing(default: torch.dtype):
    wanted = norm_of(plain_gradients(mlp(), batch()))
    model, x = mlp(), batch()
    torch.set_default_dtype(default)
    try:
        bench = bench_of(model)
        loss_of(bench.model, x).backward()
        assert bench.replica.finish_gradient().norm == pytest.approx(wanted, rel=1e-6)
    finally:
        torch.set_default_dtype(torch.float32)


def test_gradients_set_by_hand_are_taken_and_stay_the_scripts_own():
    bench = bench_of(mlp())
    own = {name: torch.full_like(p, 0.5) for name, p in bench.model.named_parameters()}
    for step in range(2):
        for name, p in bench.model.named_parameters():
            p.grad = own[name]
        bench.replica.finish_gradient()
        assert same(bench.published(step % 2), own)
        assert all(p.grad is own[name] for name, p in bench.model.named_parameters())
        bench.replica.flip(1 - step % 2)
    for gradient in own.values():
        gradient.zero_()
    loss_of(bench.model, batch()).backward()
    bench.replica.finish_gradient()
    assert same(bench.published(0), plain_gradients(mlp(), batch()))
    assert all(p.grad is own[name] for name, p in bench.model.named_parameters())


def test_a_replaced_gradient_is_copied_and_counts_as_touched():
    bench = bench_of(mlp())
    loss_of(bench.model, batch()).backward()
    for p in bench.model.parameters():
        p.grad = p.grad * 0.5
    gradient = bench.replica.finish_gradient()
    wanted = {name: g * 0.5 for name, g in plain_gradients(mlp(), batch()).items()}
    assert same(bench.published(0), wanted)
    assert gradient.touched
    assert gradient.norm == pytest.approx(norm_of(wanted), rel=1e-6)


def test_a_gradient_with_a_graph_keeps_it():
    bench = bench_of(mlp())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*create_graph")
        loss_of(bench.model, batch()).backward(create_graph=True)
    assert all(p.grad.requires_grad for p in bench.model.parameters())
    bench.replica.finish_gradient()
    assert same(bench.published(0), {name: g.detach() for name, g in plain_gradients(mlp(), batch()).items()})


def test_a_transposed_gradient_is_copied_by_its_values():
    bench = bench_of(nn.Linear(400, 400, bias=False))
    wanted = torch.randn(400, 400)
    bench.model.weight.grad = wanted.t()
    gradient = bench.replica.finish_gradient()
    assert torch.equal(bench.published(0)["weight"], wanted.t())
    assert gradient.norm == pytest.approx(float(wanted.norm()), rel=1e-5)


def test_another_memory_format_changes_no_value():
    torch.manual_seed(0)
    model, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    wanted = model.weight.detach().clone(), torch.autograd.grad(model(x).square().sum(), model.weight)[0]
    bench = bench_of(model.to(memory_format=torch.channels_last))
    model(x).square().sum().backward()
    bench.replica.finish_gradient()
    assert torch.equal(model.weight, wanted[0])
    torch.testing.assert_close(bench.published(0)["weight"], wanted[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_gradient_has_a_non_finite_norm(bad: float):
    bench = bench_of(mlp())
    loss_of(bench.model, batch()).backward()
    next(bench.model.parameters()).grad[0, 0] = bad
    assert not math.isfinite(bench.replica.finish_gradient().norm)
    bench.replica.flip(1)
    bench.optimizer.zero_grad()
    loss_of(bench.model, batch()).backward()
    assert math.isfinite(bench.replica.finish_gradient().norm)


def test_a_loss_of_nan_is_found_without_a_touch():
    bench = bench_of(mlp())
    loss_of(bench.model, batch() * math.nan).backward()
    gradient = bench.replica.finish_gradient()
    assert not math.isfinite(gradient.norm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squares_beyond_float32_still_give_a_finite_norm(dtype: torch.dtype):
    bench = bench_of(nn.Linear(2, 2, bias=False).to(dtype))
    bench.model.weight.grad = torch.full((2, 2), 1e30, dtype=dtype)
    assert bench.replica.finish_gradient().norm == pytest.approx(2e30, rel=1e-2)


def test_a_step_without_any_gradient_is_refused():
    bench = bench_of(mlp())
    with pytest.raises(UsageError, match="without a gradient"):
        bench.replica.finish_gradient()


def test_a_sparse_gradient_is_refused_by_name():
    bench = bench_of(nn.Sequential(nn.Embedding(4, 2, sparse=True)))
    with pytest.raises(UsageError, match=r"parameter 0.weight is torch.sparse_coo"):
        bench.model(torch.tensor([1])).sum().backward()


def test_empty_and_scalar_parameters_are_carried():
    model = nn.Module()
    model.none, model.one = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.tensor(2.0))
    bench = bench_of(model)
    (model.none.sum() + model.one * 3).backward()
    gradient = bench.replica.finish_gradient()
    assert (gradient.norm, gradient.absent) == (3.0, b"")
    bench.replica.check_untouched()


def test_no_hook_is_left_after_release():
    bench = bench_of(mlp())
    bench.replica.release()
    loss_of(bench.model, batch()).backward()
    assert not any(g.any() for g in bench.published(0).values())


# --- parameters ------------------------------------------------------------------------------------------


def test_seeding_writes_the_values_and_drops_the_optimizers_state():
    model = mlp()
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    spec = spec_of(model, optimizer)
    layout = layout_of(spec)
    objects = [id(p) for p in model.parameters()]
    loss_of(model, batch()).backward()
    optimizer.step()
    arenas = torch.zeros(arena_map(layout).size_bytes, dtype=torch.uint8), torch.zeros(parameter_arena_bytes(layout)[1], dtype=torch.uint8)
    replica = Replica(model, optimizer, spec, *arenas)
    packed = replica.seed()
    assert packed
    assert b"momentum_buffer" in packed
    assert not optimizer.state
    assert replica.seed() is None
    for slot in layout.slots:
        assert torch.equal(tensor_at(arenas[1], slot.start, slot.spec), initial[slot.spec.name])
    assert [id(p) for p in model.parameters()] == objects
    assert replica.parameter_bytes == layout.trainable_bytes


def test_parameters_follow_the_shards_in_place_and_their_copy_otherwise(is_staged: bool):
    bench = bench_of(mlp())
    weight = bench.model[0].weight
    before, address = weight.detach().clone(), weight.data_ptr()
    slot = layout_of(spec_of(bench.model, bench.optimizer)).slots[0]
    server = tensor_at(bench.shared, slot.start, slot.spec)
    server.add_(1)
    assert torch.equal(weight, before)
    bench.read(in_place=True)
    assert torch.equal(weight, server)
    bench.replica.await_copies()
    server.add_(1)
    assert torch.equal(weight, server) != is_staged
    bench.replica.check_untouched()
    bench.replica.point("private")
    bench.replica.copy_in()
    assert torch.equal(weight, before)
    bench.read(in_place=False)
    assert torch.equal(weight, server)
    bench.replica.check_untouched()
    assert weight is next(bench.model.parameters())
    assert not is_staged or weight.data_ptr() == address


def test_training_works_in_both_ways_of_pointing():
    bench = bench_of(mlp())
    for in_place in (True, False, True):
        bench.replica.point("shards" if in_place else "private")
        bench.optimizer.zero_grad()
        loss_of(bench.model, batch()).backward()
        bench.replica.finish_gradient()
        assert same(bench.published(0), plain_gradients(mlp(), batch()))


def test_another_worker_takes_the_constants_and_buffers_of_the_first():
    def make(fill: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        nn.init.constant_(model[0].bias, fill)
        model[1].running_mean.fill_(fill)
        return model, torch.optim.SGD([model[0].weight], lr=0.1)

    first = bench_of(*make(1.0))
    other = bench_of(*make(2.0), shared=first.shared)
    assert torch.equal(other.model[0].bias, first.model[0].bias)
    assert torch.equal(other.model[0].weight, first.model[0].weight)
    assert torch.equal(other.model[1].running_mean, torch.ones(3))
    assert other.model[0].bias.data_ptr() != first.model[0].bias.data_ptr()


def write_in_place(p: nn.Parameter) -> None:
    with torch.no_grad():
        p.add_(1)


def copy_over(p: nn.Parameter) -> None:
    with torch.no_grad():
        p.copy_(torch.zeros_like(p))


def repoint(p: nn.Parameter) -> None:
    p.data = torch.zeros_like(p)


@pytest.mark.parametrize("write", [write_in_place, copy_over, repoint])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_write_to_a_parameter_is_noticed_by_name(write, in_place: bool):
    bench = bench_of(mlp())
    bench.replica.point("shards" if in_place else "private")
    bench.replica.check_untouched()
    write(bench.model[2].weight)
    with pytest.raises(UsageError, match=r"parameter 2\.weight was changed by the script"):
        bench.replica.check_untouched()
    bench.replica.settle()
    bench.replica.check_untouched()


def test_a_saved_parameter_does_not_bring_the_arena_along():
    bench = bench_of(mlp())
    weight = bench.model[0].weight
    assert weight.untyped_storage().nbytes() == weight.nbytes
    assert bench.model.state_dict()["0.weight"].untyped_storage().nbytes() == weight.nbytes


# --- buffers and settings --------------------------------------------------------------------------------


def test_buffers_are_stored_beside_each_gradient_and_their_mean_is_loaded():
    model = nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3))
    bench = bench_of(model)
    layout = layout_of(spec_of(model, bench.optimizer))
    ours = arena_map(layout)
    running_mean = model[1].running_mean
    model(batch())
    bench.replica.store_buffers(1)
    for slot in layout.buffers:
        assert torch.equal(tensor_at(bench.arena, ours.buffers[1] + slot.start, slot.spec), model.get_buffer(slot.spec.name))
    assert not bench.arena[ours.buffers[0] : ours.buffers[0] + layout.buffer_bytes].any()
    mean = {slot.spec.name: tensor_at(bench.arena, ours.mean_buffers + slot.start, slot.spec).fill_(3) for slot in layout.buffers}
    bench.replica.load_mean_buffers()
    assert all(torch.equal(model.get_buffer(name), value) for name, value in mean.items())
    assert model[1].running_mean is running_mean


def test_initial_buffers_lie_behind_the_parameters():
    model = nn.BatchNorm1d(3)
    model.running_var.fill_(5)
    bench = bench_of(model)
    layout = layout_of(spec_of(model, bench.optimizer))
    start, _ = parameter_arena_bytes(layout)
    slot = next(slot for slot in layout.buffers if slot.spec.name == "running_var")
    assert torch.equal(tensor_at(bench.shared, start + slot.start, slot.spec), torch.full((3,), 5.0))


def test_a_buffer_that_changed_its_shape_is_refused_and_one_that_was_replaced_is_not():
    model = nn.BatchNorm1d(3)
    bench = bench_of(model)
    model.running_mean = torch.full((3,), 7.0)
    bench.replica.store_buffers(0)
    model.running_mean = torch.zeros(4)
    with pytest.raises(UsageError, match=r"buffer running_mean was \[3\]"):
        bench.replica.store_buffers(0)


def test_settings_are_sent_first_and_when_they_change():
    bench = bench_of(mlp())
    (sent,) = msgspec.msgpack.decode(bench.replica.hyper())
    assert sent["lr"] == 0.1
    assert bench.replica.hyper() == b""
    bench.optimizer.param_groups[0]["lr"] = 0.05
    (sent,) = msgspec.msgpack.decode(bench.replica.hyper())
    assert sent["lr"] == 0.05
    assert bench.replica.hyper() == b""
    bench.optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
    with pytest.raises(UsageError, match="1 param groups at prepare and has 2"):
        bench.replica.hyper()


def test_clipping_is_remembered_for_one_step():
    bench = bench_of(mlp())
    loss_of(bench.model, batch()).backward()
    bench.replica.clip(2.0)
    assert bench.replica.max_norm == 2.0
    wanted = norm_of({name: p.grad for name, p in bench.model.named_parameters()})
    assert bench.replica.local_norm() == pytest.approx(wanted, rel=1e-6)
    assert not bench.replica.finish_gradient().touched
    bench.replica.flip(1)
    assert bench.replica.max_norm == 0.0


def test_a_hook_of_the_scripts_that_returns_something_is_told_by_torch() -> None:
    model = mlp()
    model[0].weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.mul_(0.5))
    bench_of(model)
    with pytest.raises(RuntimeError, match="hooks should return None"):
        loss_of(model, batch()).backward()
