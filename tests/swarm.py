"""Random clusters: the worlds of `randomworlds` on the virtual engine's timeline and network, under all laws.

A seed first draws which faults there are; after `CALM_S` none comes any more, and the run must reach a good end.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from laws import Referee
from paceline.engine.virtual.cluster import (
    GBIT,
    Between,
    Cluster,
    Group,
    Kill,
    Network,
    Rate,
    Seconds,
    Servers,
    Slowdown,
    check_cluster,
    crew_of,
)
from paceline.engine.virtual.compute import Rhythm, stream
from paceline.engine.virtual.fates import Fates
from paceline.engine.virtual.job import Job
from paceline.engine.virtual.member import Member
from paceline.engine.virtual.network import Network as Hosts
from paceline.engine.virtual.timeline import Timeline
from paceline.hybrid import Hybrid
from paceline.messages import Address, Halt, Message, Restate, Serve
from paceline.pace import Pace
from paceline.ports import Delivery
from paceline.roles import moves
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import Effect, End, JobSettings, Note, Send
from randomworlds import Wild, judge, random_habits, random_pace
from routines import Habits, Trainee
from stores import Arena, Content, CountingStore, Name, Violation
from world import Process

CALM_S = 5.0
MOST_EVENTS = 300_000


class Handed:
    """Luggage that is handed on as it is."""

    def pack(self, attachments: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(attachments)

    def open(self, message: Message, attachments: tuple[Any, ...]) -> tuple[Any, ...]:
        return attachments

    def keep(self, message: Message, attachments: tuple[Any, ...], sender: Address, role: Coordinator) -> None:
        """Nothing is needed later."""

    def attach(self, send: Send, role: Coordinator) -> Send:
        return send._replace(attachments=(b"state",)) if isinstance(send.message, Restate) else send

    def drop(self, attachments: tuple[Any, ...]) -> None:
        """Nothing is held."""


class Watched:
    """A coordinator whose every event the referee sees."""

    def __init__(self, role: Coordinator, swarm: Swarm) -> None:
        self._role, self._swarm = role, swarm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)

    def handle(self, sender: Address, message: Message, now_s: float) -> list[Effect]:
        self._swarm.referee.before(sender, message)
        return self._seen(self._role.handle(sender, message, now_s))

    def left(self, who: Address, reason: str, now_s: float) -> list[Effect]:
        self._swarm.referee.before(who, None)
        return self._seen(self._role.left(who, reason, now_s))

    def expire(self, now_s: float) -> list[Effect]:
        return self._seen(self._role.expire(now_s))

    def set_pace(self, pace: Pace, why: str, now_s: float) -> list[Effect]:
        return self._seen(self._role.set_pace(pace, why, now_s))

    def _seen(self, effects: list[Effect]) -> list[Effect]:
        self._swarm.note_refusals(effects)
        self._swarm.referee.after(effects)
        return effects


class Doer(Member):
    """A test world's process as a member."""

    def __init__(self, swarm: Swarm, worker: int, incarnation: int, rhythm: Rhythm, *, is_cut_short: bool) -> None:
        super().__init__(swarm.job, worker, incarnation, rhythm, is_cut_short=is_cut_short)
        self._swarm = swarm
        self._inbox: deque[Delivery] = deque()
        self.process = Process(swarm, worker, incarnation, lambda process: Trainee(process, swarm.habits).main())  # type: ignore[arg-type]

    def begin(self) -> None:
        self._swarm.processes[self.id] = self.process
        self._resume(None)

    def arrive(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, Halt):
            self.stop()
        else:
            self._inbox.append(delivery)
            if self.process.receiving:
                self._resume(self._inbox.popleft())

    def stop(self) -> None:
        super().stop()
        self.process.stop()

    def _resume(self, delivery: Delivery | None) -> None:
        self.process.resume(delivery)
        while self.process.receiving and self._inbox:
            self.process.resume(self._inbox.popleft())
        if self.process.computing:
            self.compute(1, lambda: self._resume(None))


class Swarm:
    """What a test world is to its processes, stores and laws, played by a virtual job."""

    def __init__(self, draw: random.Random) -> None:
        num_workers = draw.randint(1, 6)
        self.random = draw
        self.habits: Habits = random_habits(draw, num_workers)
        pace = random_pace(draw, num_workers)
        hybrid = Hybrid("hybrid:wild", "goodput", pace) if draw.random() < 0.5 else None
        self.settings = JobSettings(num_workers, draw.randint(1, 3), pace, patience_s=3600.0, hybrid=hybrid)
        self.cluster = random_cluster(draw, num_workers)
        self.processes: dict[int, Process] = {}
        self.stores: dict[int, CountingStore] = {}
        self.arenas: dict[tuple[int, int], Arena] = {}
        self.contents: dict[Name, Content] = {}
        self.read: dict[Name, set[int]] = {}
        self.refused: dict[Name, str] = {}
        self.events: list[dict[str, object]] = []
        self.referee = Referee()
        self.referee.world = self  # type: ignore[assignment]
        timeline, crew = Timeline(), crew_of(self.cluster, num_workers)
        hosts = Hosts(timeline, self.cluster, crew, self.settings.num_servers)
        self.job = Job(self.settings, timeline, hosts, build=self._build, books=self, luggage=Handed())  # type: ignore[arg-type]
        self.servers = self.job.servers
        policy = None if self.settings.hybrid is None else Wild(draw, num_workers, judges=draw.random() < 0.5)
        role = Coordinator(self.settings, 0.0, policy=policy)
        self.coordinator = self.job.coordinator = Watched(role, self)  # type: ignore[assignment]
        Fates(self.job, crew, self.cluster.kill, 0, self._make)
        until_s = draw.choice((0.1, 1.0, CALM_S))
        self.paces = [(draw.uniform(0.0, until_s), random_pace(draw, num_workers)) for _ in range(draw.choice((0, 0, 1, 2, 4)))]
        for at_s, pace in self.paces:
            timeline.at(at_s, self._set_pace, pace)

    def __str__(self) -> str:
        return f"{self.settings} {self.habits} {self.cluster} {self.paces}"

    def _build(self, serve: Serve, attachments: tuple[object, ...]) -> CountingStore:
        return self.stores.setdefault(serve.shard, CountingStore(self, serve.shard))  # type: ignore[arg-type]

    def _make(self, worker: int, incarnation: int) -> Doer:
        group = crew_of(self.cluster, self.settings.num_workers)[worker]
        rhythm = Rhythm(group, worker, stream(0, worker, incarnation), {})
        return Doer(self, worker, incarnation, rhythm, is_cut_short=group.cancel == "at once")

    def _set_pace(self, pace: Pace) -> None:
        if self.job.end is None:
            self.job.carry_out(self.coordinator.set_pace(pace, "a test wants it", self.job.timeline.now_s))

    # --- what a process and its laws see ------------------------------------------------------------------

    def post(self, sender: Address, to: Address, message: Message, attachments: tuple[object, ...]) -> None:
        member = self.job.members[sender.id]
        assert member.alive
        self.job.post(member, to, message, attachments)

    def close(self, process: Process) -> None:
        """A process has ended well."""
        assert process.finished
        self.job.members[process.worker].alive = False

    def note_refusals(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Note) and effect.event["event"] == "refuse":
                worker, step = int(str(effect.event["worker"])), int(str(effect.event["step"]))
                name = max(name for name in self.referee.arrived if name[0] == worker and name[2] == step)
                if name in self.refused:
                    raise Violation(f"{name} is refused twice")
                self.refused[name] = str(effect.event["reason"])

    def note(self, event: dict[str, object], now_s: float) -> None:
        self.events.append(event)

    def take(self, effect: Effect, job: Job) -> None:
        """Warnings and metrics are nobody's."""

    def whereabouts(self) -> str:
        return "; ".join(f"worker {one.worker}: {one.why}" for one in self.processes.values() if one.alive)

    def run(self) -> End:
        def look() -> None:
            if self.job.timeline.num_events > MOST_EVENTS:
                raise Violation(f"no end after {MOST_EVENTS} events: {self.whereabouts()}")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moves, "EVERY_STEPS", 1)
            patch.setattr(moves, "EVERY_S", 0.0)
            return self.job.run(look)


def random_cluster(draw: random.Random, num_workers: int) -> Cluster:
    """Uneven workers on an uneven network, with the faults that the seed has drawn."""
    chance = draw.random
    fails, comes_and_goes, is_far = chance() < 0.5, chance() < 0.4, chance() < 0.3
    groups: list[Group] = []
    for worker in range(num_workers):
        joins = Seconds(draw.uniform(0.0, CALM_S)) if comes_and_goes and worker and chance() < 0.5 else Seconds(0.0)
        leaves = Seconds(joins + draw.uniform(0.1, CALM_S)) if comes_and_goes and worker and chance() < 0.3 else None
        groups.append(
            Group(
                count=1,
                compute=Seconds(draw.choice((0.0, 0.01, 0.1, 0.5))),
                factor=draw.choice(("constant", "normal", "lognormal", "exponential")),
                spread=draw.choice((0.0, 0.05, 1.0)),
                cancel=draw.choice(("at once", "at step end")),
                slow=(Slowdown(10.0, Seconds(1.0), Seconds(2.0)),) if chance() < 0.2 else (),
                region="far" if is_far and chance() < 0.5 else "",
                bandwidth=Rate(draw.choice((50.0, 1000.0, GBIT))),
                joins=joins,
                leaves=leaves,
            )
        )
    kills: list[Kill] = []
    until_s = draw.choice((0.1, 1.0, CALM_S))
    for _ in range(draw.randint(1, 8) if fails else 0):
        repair = Seconds(draw.uniform(0.0, 1.0)) if chance() < 0.7 else None
        kills.append(Kill(worker=draw.randrange(num_workers), at=Seconds(draw.uniform(0.0, until_s)), repair=repair))
    between = Between(regions=("", "far"), latency=Seconds(draw.choice((0.0, 0.2))), bandwidth=Rate(draw.choice((100.0, inf))))
    has_far = any(group.region for group in groups)
    network = Network(
        bandwidth=Rate(draw.choice((100.0, GBIT, inf))),
        latency=Seconds(draw.choice((0.0, 1e-4, 0.05))),
        between=(between,) if has_far else (),
    )
    servers = Servers(hosts=draw.choice(("apart", "one")), apply=Rate(draw.choice((inf, inf, 5000.0))))
    cluster = Cluster(network=network, servers=servers, workers=tuple(groups), kill=tuple(kills))
    check_cluster(cluster)
    return cluster


def swarm(seed: int) -> Swarm:
    """Play the swarm of `seed` to its end under all laws; raises Violation with what led there."""
    played = Swarm(random.Random(seed))
    try:
        end = played.run()
        if played.habits.stops_at and "without a single update" in end.sentence:
            return played  # whoever asked for the end died before its first gradient had come
        judge(played, played.referee, played.habits, end.code, end.sentence)  # type: ignore[arg-type]
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation} [{played}]") from violation
    return played
