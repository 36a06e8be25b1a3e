"""A run with others: this process is one worker of an engine's job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil, isinf
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from paceline.config import read_recorded
from paceline.engine.link import Link
from paceline.errors import UsageError
from paceline.hybrid import start_of
from paceline.logic.partition import arena_map, layout_of, parameter_arena_bytes
from paceline.messages import Go, Hello, ModelSpec
from paceline.pace import Pace
from paceline.roles.worker import WorkerRole
from paceline.session.adopted import adopt
from paceline.session.feed import Feed, Leases, Steps, Stride
from paceline.session.loader import Strided, check_loader, fetching
from paceline.session.meter import Meter
from paceline.session.prepared import sort_out
from paceline.session.run import Run, checked_norm, number_of, say
from paceline.session.sampling import Rules, Sampling
from paceline.session.schedule import Clock, Rates, follow
from paceline.session.slow import Handicap
from paceline.session.states import States, adopt_model, adopt_optimizer
from paceline.session.streams import reseed
from paceline.session.whole import Whole
from paceline.session.worker import Worker
from paceline.settings import Settings
from paceline.tensors.replica import Replica
from paceline.tensors.spec import device_of, parameters_of, spec_of

NO_LOADER = "no loader was prepared, so each step counted as one sample and nobody accounts for which samples were used"
ITERABLE = "the loader's dataset is iterable: each worker takes one of every {} items, and accounting of samples is approximate"


class Joined(Run):
    """One worker among `num_workers`; a member of the run from `prepare` on."""

    def __init__(self, link: Link, settings: Settings, wished: str) -> None:
        self.worker, self.num_workers = link.member.worker, link.member.num_workers
        self._link, self._settings, self._wished = link, settings, wished
        self._role = WorkerRole(link.member.worker, link.member.incarnation, link.member.num_servers)
        self._handicap = Handicap(self.worker, settings.slow, read_recorded(settings.compute) if settings.compute else ())
        self._me: Worker | None = None
        self._feed: Feed | None = None
        self._rates: Rates | None = None
        self._epochs_behind = 0
        self._has_stopped = False

    @property
    def pace(self) -> Pace:
        """The pace in force, as this worker last heard."""
        return self._role.pace or start_of(self._settings.pace)

    @property
    def is_first(self) -> bool:
        """As the coordinator last told all workers alike."""
        return self._role.first == self.worker

    # --- joining ------------------------------------------------------------------------------------------

    def _prepare(self, things: tuple[object, ...]) -> None:
        prepared = sort_out(things, again=self._me is not None)
        if prepared.model is not None and prepared.optimizer is not None:
            if prepared.loader is not None:
                check_loader(prepared.loader)
            go = self._join(prepared.model, prepared.optimizer)
            self._epochs_behind = go.epoch
            if self.worker:
                reseed(self._settings.seed + self.worker)
            self._feed = self._feed_of(prepared.loader, go.epoch)
        if prepared.scheduler is not None:
            catch_up = follow(prepared.scheduler, self._clock, late_epochs=self._epochs_behind)
            self._member().at_first_batch.append(catch_up)
            assert self._rates is not None
            self._rates.is_prepared = True

    def _join(self, model: nn.Module, optimizer: Optimizer) -> Go:
        """Become a member: agree on the model, share memory, begin with worker 0's parameters."""
        link, role, spec = self._link, self._role, spec_of(model, optimizer)
        where = link.surroundings
        layout, device = layout_of(spec), device_of(model)
        if device.type != "cpu" and not where.may_use_devices:
            raise UsageError(f"the model is on {device}, but the workers of the {where.engine} engine compute on the cpu; leave it there")
        hello = Hello(self.worker, role.incarnation, where.pid, where.host, spec, self._wished)
        welcome, (arena,) = link.drive(role.join(hello))
        shared = torch.frombuffer(link.map(arena, parameter_arena_bytes(layout)[1]), dtype=torch.uint8)
        own = link.share("arena", arena_map(layout).size_bytes)
        memory = torch.frombuffer(own.memory, dtype=torch.uint8)
        replica = Replica(model, optimizer, spec, memory, shared)
        if welcome.first:
            state = replica.seed()
            link.drive(role.seed(state is not None, () if state is None else (state,)))
        else:
            replica.adopt_constants()
        go = link.drive(role.attach(own.attachment))
        link.let_go(own.attachment)
        self._me = Worker(link, role, replica, self._handicap, meter=Meter(where.now_s, where.cpu_s), sleep=where.sleep)
        if self._settings.route_in_force != "servers":
            self._me.may_hold(Whole(link, spec, replica, memory, weight=self._me.weight_of_step, device=device))
            link.before_bye.append(self._me.leave)
        replica.tell_of_gradients(self._me.written)
        where.at_exit(self._remark)
        if welcome.version:
            # what was loaded and averaged since the run began is not among the initial values
            self._me.pull()
            replica.load_constants()
        else:
            self._me.converse(role.pull())
            replica.copy_in()
        self._adopt(model, optimizer, spec, self._me)
        return go

    def _adopt(self, model: nn.Module, optimizer: Optimizer, spec: ModelSpec, me: Worker) -> None:
        states = States(me, spec)
        adopt_model(model, parameters_of(model, optimizer), states, spec, me)
        self._rates = adopt_optimizer(optimizer, states, spec, me)

    # --- loader and scheduler -----------------------------------------------------------------------------

    def _feed_of(self, loader: DataLoader[Any] | None, epoch: int) -> Feed:
        me = self._member()
        if loader is None:
            return self._steps(me, epoch)
        if isinstance(loader.dataset, IterableDataset):
            return self._stride(me, loader, epoch)
        return self._leases(me, loader, epoch)

    def _leases(self, me: Worker, loader: DataLoader[Any], epoch: int) -> Feed:
        settings = self._settings
        rules = Rules(settings.leases, settings.batch, self.num_workers, settings.cuts_samples)
        sampling = Sampling(loader, settings.seed)
        if rules.cuts and loader.batch_size:
            me.even_samples = loader.batch_size / (rules.num_workers if rules.batch == "global" else 1)
        feed = Leases(me, epoch, sampling, rules)
        feed.loader = fetching(loader, self.worker, sampler=feed, may_fork=self._link.surroundings.may_fork)
        adopt(loader, __iter__=lambda _: feed.batches(), __len__=lambda _: sampling.num_updates(rules))
        return feed

    def _stride(self, me: Worker, loader: DataLoader[Any], epoch: int) -> Feed:
        say(ITERABLE.format(self.num_workers))
        me.is_counted = False
        strided = Strided(cast(Iterable[Any], loader.dataset), self.worker, self.num_workers)
        own = fetching(loader, self.worker, dataset=strided, may_fork=self._link.surroundings.may_fork)
        feed = Stride(me, epoch, own, loader.batch_size or 1)
        length = type(loader).__len__
        adopt(loader, __iter__=lambda _: feed.batches(), __len__=lambda adopted: ceil(length(adopted) / self.num_workers))
        return feed

    def _steps(self, me: Worker, epoch: int) -> Feed:
        me.is_counted = False
        feed = Steps(me, epoch)
        feed.open()
        return feed

    def _clock(self) -> Clock:
        return Clock(self._role.clock, self._feed is not None and self._feed.in_loop)

    # --- what the script calls ----------------------------------------------------------------------------

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """From the epoch that the run is in (0, but for a late joiner) to `num_epochs` - 1."""
        self._member().planned_epochs += num_epochs
        feed = self._feed
        assert feed is not None
        first = min(self._epochs_behind, num_epochs)
        self._epochs_behind -= first
        for epoch in range(first, num_epochs):
            if self._role.stopping or self._has_stopped:
                return
            if isinstance(feed, Steps) and not feed.is_open:
                feed.open()
            yield epoch
            feed.close()

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip the folded gradient, as DDP users expect; returns the norm of this worker's own."""
        replica = self._member().replica
        if not isinf(checked_norm(max_norm)):
            replica.clip(float(max_norm))
        return torch.tensor(replica.local_norm())

    def log(self, **metrics: float | torch.Tensor) -> None:
        """Send numbers to the run's record, with the samples behind them."""
        me = self._member()
        feed = self._feed
        assert feed is not None
        numbers = {name: number_of(value, f"run.log({name}=...)") for name, value in metrics.items()}
        me.converse(self._role.log(numbers, feed.entered, me.weight))

    def mean(self, x: float | torch.Tensor, n: float | None = None) -> float:
        """The mean over all workers; each call of one worker meets that of every other."""
        me = self._member()
        weight = float(me.epoch_samples or 1) if n is None else number_of(n, "run.mean(n=...)")
        met = me.converse(self._role.meet(me.key_of("run.mean"), (number_of(x, "run.mean(x)"),), weight))
        return met.values[0] / met.weight if met.weight else float("nan")

    def pull(self) -> None:
        """Read the newest parameters and averaged buffers; the next step goes on as if nothing had been."""
        self._member().pull()

    def stop(self, why: str = "the script asked for it") -> None:
        """Ask for the end; every worker's epoch ends as soon as what is computed on is folded."""
        self._member().converse(self._role.stop(why))
        self._has_stopped = True

    def _remark(self) -> None:
        """What is only known at the end."""
        me = self._member()
        if me.is_broken or me.is_over:
            return
        me.is_over = True  # loops that the script has left open are closed after this, when nobody listens
        if self._handicap.num_overrun:
            steps = f"{self._handicap.num_overrun} step{'s' if self._handicap.num_overrun > 1 else ''}"
            say(f"{steps} took longer than --compute says, by {self._handicap.overrun_s:.3g} s in all")
        if isinstance(self._feed, Steps):
            say(NO_LOADER)

    def _member(self) -> Worker:
        if self._me is None:
            raise UsageError("run.prepare(model, opt, loader) must be called before this; it makes the script a part of the run")
        return self._me
