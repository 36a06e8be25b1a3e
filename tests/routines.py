"""What the workers of a test's world run: the loops of training scripts, as a session would drive them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple

import msgspec

from paceline.messages import Draw, Drawn, EpochOver, Hello, Load
from paceline.roles.effects import Send
from paceline.roles.talk import Gradient, Leased, Receive
from stores import Content
from world import Compute, Process, model_of

DIVERGING_STEPS = 10

Routine = Generator[Send | Receive | Compute, Any, Any]


class Data(NamedTuple):
    """The batch list of every epoch: `sizes` per entry, or with `cut` one list of samples; `owners` when static."""

    sizes: tuple[int, ...]
    static: bool = False
    cut: int = 0


class Habits(NamedTuple):
    """How a script behaves. `poison` are positions whose gradient is never finite, `unlucky` the share of others.

    From step `diverges_at` on, if not 0, some steps log a loss that is not finite, or a hundredfold one.
    """

    data: Data
    num_epochs: int = 2
    prefetch: int = 0
    accumulate: int = 1
    flushes: bool = True
    breaks_after: int = 0
    breaker: int = -1
    pause: int = 0
    meets: bool = False
    loads: bool = False
    pulls: bool = False
    snapshots: bool = False
    counted: bool = True
    clip: float = 0.0
    poison: tuple[int, ...] = ()
    unlucky: float = 0.0
    stops_at: int = 0
    scales_gradients: bool = True
    diverges_at: int = 0


class Trainee:
    """The script of one process, with what it noticed: `ends` holds the versions read at each epoch's end."""

    def __init__(self, process: Process, habits: Habits) -> None:
        self.process, self.role, self.habits = process, process.role, habits
        self.random = process.world.random
        self.num_steps = 0

    def main(self) -> Routine:
        habits, role = self.habits, self.role
        hello = Hello(role.worker, role.incarnation, 1, "host", model_of(scales_gradients=habits.scales_gradients))
        welcome, _ = yield from role.join(hello)
        if welcome.first:
            yield Compute(reads=False)
            yield from role.seed(False, ())
        go = yield from role.attach(object())
        for epoch in range(go.epoch, habits.num_epochs):
            over = yield from self.train(epoch)
            yield from role.at_end(over)
            noticed(self.process.world).setdefault(epoch, set()).add(tuple(role.versions))
            yield from self.evaluate(epoch)
            if over.stop:
                break
        yield from role.bye()

    def evaluate(self, epoch: int) -> Routine:
        """Between two epochs."""
        habits = self.habits
        for _ in range(habits.pause):
            yield Compute(reads=True)
        if habits.pulls:
            yield from self.role.pull(buffers=True)
        if habits.snapshots and self.role.worker == 0:
            yield from self.role.snapshot(optimizer=True)
        if habits.loads:
            met = yield from self.role.meet(f"load {epoch}", tuple(float(i == self.role.worker) for i in range(self.role.worker + 1)), 1.0)
            if not any(met.values[: self.role.worker]):
                yield from self.role.load(Load(True, False), b"state")
            met = yield from self.role.meet(f"loaded {epoch}", (), 1.0)
            yield from self.role.pull(at_least=met.version)
        if habits.meets:
            met = yield from self.role.meet(f"accuracy of {epoch}", (1.0, float(self.role.worker)), 2.0)
            assert met.weight == 2.0 * met.values[0] / 2.0

    def train(self, epoch: int) -> Routine:
        """An epoch's loop: rounds of a loader until the epoch is over."""
        role = self.role
        answer, _ = yield from role.enter(epoch, ledger=self.habits.counted, planned=self.habits.num_epochs)
        if isinstance(answer, Draw):
            answer, _ = yield from role.drawn(self.draw(epoch), object())
        if not self.habits.counted:
            yield from self.train_uncounted(epoch)
            yield from role.give_back(epoch, consumed=False)
            return (yield from self.until_over(epoch))
        left = False
        while not left:
            left = yield from self.round(epoch)
            if not left and not role.held:
                over = yield from role.lease(epoch, wait=True)
                if over is not None:
                    return over
        yield from role.give_back(epoch, consumed=bool(role.started))
        return (yield from self.until_over(epoch))

    def until_over(self, epoch: int) -> Routine:
        """Having left the loop: wait for the others."""
        over = yield from self.role.lease(epoch, wait=True)
        assert isinstance(over, EpochOver)
        return over

    def train_uncounted(self, epoch: int) -> Routine:
        for _ in range(len(self.habits.data.sizes)):
            if not self.role.granted and not (yield from self.role.begin(epoch)):
                return
            yield Compute(reads=True, writes=True)
            self.role.granted = False
            yield from self.push(epoch, (), 1)
            if self.role.stopping:
                return

    def draw(self, epoch: int) -> Drawn:
        data, num_workers = self.habits.data, self.process.world.settings.num_workers
        owners = tuple(i % num_workers for i in range(len(data.sizes))) if data.static else ()
        per_update = data.cut or num_workers * max(data.sizes)
        return Drawn(epoch, data.sizes, owners, max(1, -(-sum(data.sizes) // per_update)), data.cut)

    def round(self, epoch: int) -> Routine:
        """One iteration of a DataLoader that fetches ahead; returns whether the script left the loop."""
        role, habits = self.role, self.habits
        fetched: deque[Leased] = deque()
        exhausted = False
        num_batches = 0
        while True:
            while not exhausted and len(fetched) <= habits.prefetch:
                if not role.unfetched:
                    yield from role.lease(epoch, wait=False)
                if role.unfetched:
                    fetched.append(role.unfetched.popleft())
                else:
                    exhausted = True
            if not fetched:
                break
            batch = fetched.popleft()
            if not role.held or role.held[0] != batch:
                continue
            if not role.granted and not (yield from role.begin(epoch)):
                continue
            if not role.held or role.held[0] != batch:
                continue
            role.take(batch)
            num_batches += 1
            yield Compute(reads=True, writes=True)
            if len(role.started) >= habits.accumulate:
                yield from self.push_started(epoch)
            if habits.breaks_after and num_batches >= habits.breaks_after and habits.breaker in (-1, role.worker):
                return True
            if habits.pulls and self.random.random() < 0.1 and not role.started and not role.granted:
                yield from role.pull()
        if role.held or not role.started:
            return False
        if habits.flushes:
            yield from self.push_started(epoch)
        return True

    def push_started(self, epoch: int) -> Routine:
        positions = tuple(leased.position for leased in self.role.started)
        sizes = self.habits.data.sizes
        samples = sum(leased.cut[1] - leased.cut[0] if leased.cut else sizes[leased.position] for leased in self.role.started)
        ranges = tuple(leased.cut for leased in self.role.started if leased.cut)
        yield from self.push(epoch, positions, samples, ranges)

    def push(self, epoch: int, positions: tuple[int, ...], samples: int, ranges: tuple[tuple[int, int], ...] = ()) -> Routine:
        role, habits = self.role, self.habits
        name = (role.worker, role.incarnation, role.step_index)
        self.process.write(Content(name, epoch, positions, samples, ranges, tuple(role.versions)))
        bad = bool(set(positions) & set(habits.poison)) or self.random.random() < habits.unlucky
        self.num_steps += 1
        if habits.stops_at and self.num_steps == habits.stops_at:
            yield from role.stop("enough")
        hyper = b"" if role.step_index else msgspec.msgpack.encode([{"lr": 0.1}])
        norm = float("nan") if bad else 1.0
        yield from role.step(Gradient(samples, norm, hyper=hyper, clip=habits.clip, buffer_samples=samples, compute_s=0.01))
        diverges = 0 < habits.diverges_at <= self.num_steps < habits.diverges_at + DIVERGING_STEPS
        loss = self.random.choice((float("nan"), float("nan"), 100.0)) if diverges else 1.0
        yield from role.log({"loss": loss}, epoch, samples)


def noticed(world: object) -> dict[int, set[tuple[int, ...]]]:
    """The versions that workers held at the end of each epoch, kept on the world."""
    return world.__dict__.setdefault("ends", {})
