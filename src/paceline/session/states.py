"""`state_dict` and `load_state_dict` of a prepared model and optimizer: the run's state, not this worker's copy."""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.errors import UsageError
from paceline.messages import Load, ModelSpec
from paceline.session.adopted import adopt
from paceline.session.schedule import Rates
from paceline.session.worker import Worker
from paceline.tensors.state import Gathered, assemble, pack, placed_state, state_of


class States:
    """Gathers the run's state at one version, and writes a loaded one through to the shards."""

    def __init__(self, worker: Worker, spec: ModelSpec) -> None:
        self._worker, self._spec = worker, spec

    def gather(self, *, optimizer: bool) -> Gathered:
        """Parameters (and optimizer state) of all shards, copied at one version."""
        link = self._worker.link
        parts = self._worker.converse(self._worker.role.snapshot(optimizer=optimizer))
        return assemble(self._spec, len(parts), [link.bytes_of(part) for part in parts])

    def write_through(self, data: bytes, *, parameters: bool) -> None:
        """Replace the run's parameters and buffers, or its optimizer state; all workers call this, what the lowest brings counts."""
        worker, role = self._worker, self._worker.role
        key = worker.key_of("load_state_dict")
        here = tuple(float(number == role.worker) for number in range(role.worker + 1))
        met = worker.converse(role.meet(key, here, 1.0))
        if not any(met.values[: role.worker]):
            worker.converse(role.load(Load(has_parameters=parameters, has_optimizer_state=not parameters), data))
        met = worker.converse(role.meet(f"the end of {key}", (), 1.0))
        worker.converse(role.pull(at_least=met.version, buffers=parameters), reads=1)
        if parameters:
            worker.replica.load_constants()
            worker.replica.load_mean_buffers()
        worker.replica.settle()


def adopt_model(model: nn.Module, parameters: list[Tensor], states: States, spec: ModelSpec, worker: Worker) -> None:
    """Let the model's state be the run's; a copy of the model is a plain one."""
    kind: Any = type(model)
    trained = [(index, (one.name, *one.aliases)) for index, one in enumerate(spec.parameters) if one.group >= 0]

    def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        saved = kind.state_dict(self, *args, **kwargs)
        if kwargs.get("keep_vars"):
            return saved
        prefix = str(kwargs.get("prefix", ""))
        gathered = states.gather(optimizer=False).parameters
        saved.update(
            {
                prefix + name: gathered[index].to(saved[prefix + name].device)
                for index, names in trained
                for name in names
                if prefix + name in saved
            }
        )
        return saved

    def load_state_dict(self: Any, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        if assign:
            raise UsageError("model.load_state_dict(assign=True) is not supported after run.prepare; leave assign out, or load before it")
        worker.converse(worker.role.pull(), reads=1)
        answer = kind.load_state_dict(self, state_dict, strict)
        values = {index: parameter.detach() for index, parameter in enumerate(parameters)}
        states.write_through(pack(spec, values, None, worker.replica.buffers()), parameters=True)
        return answer

    adopt(model, state_dict=state_dict, load_state_dict=load_state_dict)


def adopt_optimizer(optimizer: Optimizer, states: States, spec: ModelSpec, worker: Worker) -> Rates:
    """Let `step` be the run's step, and the state the run's; all on the instance, whose class stays what it was."""
    kind: Any = type(optimizer)
    rates = Rates(optimizer)

    @Optimizer.profile_hook_step  # the script's step hooks are called
    def step(self: Any, closure: object = None) -> None:
        if closure is not None:
            raise UsageError("opt.step(closure) is not supported: a step is one gradient; call loss.backward() and then opt.step()")
        self._opt_called = True  # what a scheduler looks for
        rates.check()
        worker.step()

    step.__dict__["_wrapped_by_lr_sched"] = True
    vars(optimizer)["_step_supports_amp_scaling"] = False  # a GradScaler unscales before the step, also for fused kernels

    def state_dict(self: Any) -> Any:
        return kind.state_dict(self) | {"state": placed_state(self, states.gather(optimizer=True).state)}

    def load_state_dict(self: Any, state_dict: Any) -> None:
        kind.load_state_dict(self, state_dict)
        rates.settle()
        data = pack(spec, None, state_of(self))
        self.state.clear()
        states.write_through(data, parameters=False)

    for method in (step, state_dict, load_state_dict):
        setattr(optimizer, method.__name__, MethodType(method, optimizer))
    return rates
