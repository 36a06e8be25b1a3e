"""Random worlds: small jobs with everything that can happen to them, the same for the same seed."""

from __future__ import annotations

import random

import pytest

from ends import check_end, check_samples
from laws import Referee
from paceline.errors import ProtocolError
from paceline.hybrid import Hybrid
from paceline.logic.policies.policy import Decision, Move
from paceline.logic.signals import Signals
from paceline.pace import Pace, parse_pace
from paceline.roles import moves
from paceline.roles.effects import JobSettings
from paceline.settings import Route
from routines import Data, Habits, Trainee
from stores import Violation
from world import Mishap, World

PATIENCE_S = 16.0


def random_pace(draw: random.Random, num_workers: int) -> Pace:
    """Any named pace with fitting arguments, sometimes with a setting of its own."""
    k = draw.randint(1, num_workers)
    name = draw.choice((
        "sync", "sync", "sync", f"backup:{draw.randrange(num_workers)}", f"ksync:{k}", f"kbatchsync:{draw.randint(1, 6)}", f"kasync:{k}",
        f"kbatchasync:{draw.randint(1, 6)}", f"softsync:{k}", "async", f"ssp:{draw.randrange(4)}",
    ))  # fmt: skip
    if draw.random() < 0.2:
        name += draw.choice((",grace_s=0.05", ",grace_s=2", ",max_lead=1", ",max_lead=0"))
    if draw.random() < 0.2:
        name += draw.choice((",max_staleness=1", ",max_staleness=2", ",max_staleness=5"))
    return parse_pace(name)


def random_route(draw: random.Random) -> Route:
    """Mostly the servers', as in most runs."""
    return draw.choice(("servers", "servers", "servers", "collective", "collective", "auto"))


def random_habits(draw: random.Random, num_workers: int) -> Habits:
    """A script that does some of what scripts do."""
    sizes = tuple(draw.randint(1, 4) for _ in range(draw.randint(1, 20)))
    cut = draw.choice((0, 0, 0, draw.randint(2, 12)))
    static = not cut and draw.random() < 0.3
    rare = draw.random
    return Habits(
        Data(sizes, static, cut),
        num_epochs=draw.randint(1, 3),
        prefetch=draw.choice((0, 0, 1, 2, 5)),
        accumulate=draw.choice((1, 1, 1, 2, 3)),
        flushes=rare() < 0.5,
        breaks_after=draw.randint(1, 5) if rare() < 0.15 else 0,
        breaker=draw.choice((-1, draw.randrange(num_workers))),
        pause=draw.choice((0, 0, 1, 5)),
        meets=rare() < 0.3,
        loads=rare() < 0.15,
        pulls=rare() < 0.3,
        snapshots=rare() < 0.2,
        counted=rare() > 0.1,
        clip=draw.choice((0.0, 0.0, 0.0, 1.0)),
        poison=(draw.randrange(len(sizes)),) if rare() < 0.1 and not cut else (),
        unlucky=draw.choice((0.0, 0.0, 0.0, 0.1)),
        stops_at=draw.randint(1, 8) if rare() < 0.1 else 0,
        scales_gradients=rare() < 0.5,
        diverges_at=draw.choice((0, draw.randint(1, 8))),
    )


def random_mishaps(draw: random.Random, num_workers: int) -> list[Mishap]:
    """Deaths, joins and rejoins, changes of pace, jumps of the clock."""
    mishaps: list[Mishap] = []
    for _ in range(draw.choice((0, 1, 2, 3, 5, 8))):
        at, worker = draw.randint(1, 500), draw.randrange(num_workers + 1)
        kind = draw.choice(("kill", "kill", "join", "pace", "pace", "jump"))
        mishaps.append(Mishap(at, kind, worker, random_pace(draw, num_workers), draw.choice((0.1, 1.5))))
        if kind == "kill" and draw.random() < 0.5:
            mishaps.append(Mishap(at + draw.randint(1, 100), "join", worker))
    return mishaps


class Wild:
    """A policy that moves to any pace at any time, with bounds and parts of its own; `judges` as it is told."""

    def __init__(self, draw: random.Random, num_workers: int, *, judges: bool) -> None:
        self.random, self.num_workers, self.judges = draw, num_workers, judges

    def decide(self, signals: Signals, history: tuple[Move, ...]) -> Decision:
        live = [one.id for one in signals.workers]
        pace = random_pace(self.random, self.num_workers) if self.random.random() < 0.5 else None
        leads = tuple((number, self.random.randrange(5)) for number in live if self.random.random() < 0.2)
        parts = {number: self.random.randint(1, 5) for number in live} if self.random.random() < 0.2 else {}
        shares = tuple((number, part / sum(parts.values())) for number, part in parts.items())
        return Decision(pace, "wild", leads=leads, shares=shares)


def play(seed: int) -> World:
    """Play the world of `seed` to its end under all laws; raises Violation with what led there."""
    return play_by(random.Random(seed))


def play_by(draw: random.Random, kind: type[World] = World, law: type[Referee] = Referee) -> World:
    """Play the world that `draw` chooses, in which things go on as in a `kind`, under the laws of `law`."""
    num_workers = draw.randint(1, 5)
    habits, pace = random_habits(draw, num_workers), random_pace(draw, num_workers)
    policy = Wild(draw, num_workers, judges=draw.random() < 0.5) if draw.random() < 0.6 else None
    hybrid = None if policy is None else Hybrid("hybrid:wild", "goodput", pace)
    num_servers = draw.randint(1, 3)
    settings = JobSettings(num_workers, num_servers, pace, patience_s=PATIENCE_S, hybrid=hybrid, route=random_route(draw))
    referee = law()
    world = kind(settings, draw, lambda process: Trainee(process, habits).main(), observer=referee, policy=policy)
    referee.world = world
    for worker in range(num_workers):
        if worker == 0 or draw.random() < 0.95:
            world.join(worker)
    mishaps = random_mishaps(draw, num_workers)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moves, "EVERY_STEPS", 1)
            patch.setattr(moves, "EVERY_S", 0.0)
            end = world.run(mishaps)
        judge(world, referee, habits, end.code, end.sentence)
    except (Violation, ProtocolError) as violation:
        raise Violation(f"{violation} [{pace.name}, {num_workers} workers, {habits}, {mishaps}]") from violation
    return world


def judge(world: World, referee: Referee, habits: Habits, code: int, sentence: str) -> None:
    """An end is good, or has a good reason."""
    if code == 4 and "the last one of the group" in sentence:
        if any(process.alive and process.applier is not None and process.applier.is_active for process in world.processes.values()):
            raise Violation(f"{sentence}, but somebody holds them")
        return
    survivors = [process for process in world.processes.values() if process.role.pace is not None and (process.alive or process.finished)]
    if code in (4, 5) and not survivors:
        return
    if code == 1 and "not finite" in sentence and (habits.poison or habits.unlucky):
        return
    may_fold_nothing = habits.poison or habits.unlucky or habits.breaks_after or habits.accumulate > 1 or not survivors
    if code == 1 and "without a single update" in sentence and may_fold_nothing:
        return
    if code:
        raise Violation(f"ended with {code}: {sentence}")
    check_end(world, referee)
    if habits.counted:
        check_samples(world, referee, habits.data, habits.num_epochs, habits)
