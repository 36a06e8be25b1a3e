"""The broker of a run under Ray against a cluster that is played: who is placed, begun, lost and tried again, without Ray."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.config import COMMAND_LINE, Resolved, resolve
from paceline.engine.local.child import Brief
from paceline.engine.local.run_dir import LOGS
from paceline.engine.ray import broker as broker_module
from paceline.engine.ray.broker import Broker
from paceline.engine.ray.cluster import Answer
from paceline.engine.ray.member import State
from paceline.errors import DeadlineError
from paceline.messages import SUPERVISOR, Address, Bye, Failed, Halt, Listening, Message, Placed, Remark, Said, encode
from paceline.transport.connection import pair
from paceline.transport.shm import SocketPort

BROKER = Address("broker")
ON_A_NODE = {"host": "10.0.0.1", "machine": "one", "life": -1}
GONE, AWAY = Answer(None, "its node has died", for_good=True), Answer(None, "it is restarting")


class Berth:
    """An actor that does what a test says: `answers` by method, each used once, then the usual one."""

    def __init__(self, place: int | None, has_room: bool) -> None:
        self.place, self.has_room = place, has_room
        self.answers: dict[str, list[Answer]] = {}
        self.told: list[Brief] = []
        self.signals: list[int] = []
        self.is_ended = False

    def answer(self, method: str, arguments: tuple[Any, ...]) -> Answer | None:
        if not self.has_room:
            return None
        if method == "begin":
            self.told.append(msgspec.json.decode(arguments[0], type=Brief))
        elif method == "signal":
            self.signals += arguments
        if self.answers.get(method):
            return self.answers[method].pop(0)
        usual = {"where": ON_A_NODE, "begin": {"host": "10.0.0.1", "port": 7}, "signal": {}}
        return Answer(usual[method]) if method in usual else None


class Call:
    """A call that is under way."""

    def __init__(self, berth: Berth, method: str, arguments: tuple[Any, ...]) -> None:
        self.berth, self.method, self.arguments = berth, method, arguments


class Played:
    """Room for all that is reserved, and for `num_more` further workers."""

    host = "10.0.0.9"

    def __init__(self, num_more: int = 0, *, is_full: bool = False) -> None:
        self.num_more, self.is_full = num_more, is_full
        self.berths: list[Berth] = []

    def reserve(self, num_places: int) -> None:
        self.num_places = num_places

    def is_reserved(self, timeout_s: float) -> bool:
        return not self.is_full

    def room(self) -> str:
        return "it has 1 CPUs on 1 nodes, 0 of them free"

    def berth(self, place: int | None, *, restarts: bool) -> Berth:
        num_free = sum(berth.place is None for berth in self.berths)
        self.berths.append(Berth(place, place is not None or num_free < self.num_more))
        return self.berths[-1]

    def call(self, berth: Berth, method: str, *arguments: object) -> Any:
        return Call(berth, method, arguments)

    def answers(self, calls: Collection[Any], timeout_s: float) -> list[tuple[Any, Answer]]:
        done = [(call, call.berth.answer(call.method, call.arguments)) for call in list(calls)]
        over = [(call, answer) for call, answer in done if answer is not None]
        if not over:
            time.sleep(timeout_s)
        return over

    def end(self, berths: Iterable[Berth]) -> None:
        for berth in berths:
            berth.is_ended = True


class Stage:
    """A broker, the supervisor's end of its socket, and all that it has told."""

    def __init__(self, folder: Path, cluster: Played, **given: object) -> None:
        (folder / LOGS).mkdir()
        line = {"engine": "ray", "out": str(folder), **{name: str(value) for name, value in given.items()}}
        resolved: Resolved = resolve(cores=2, stamp="", command_line=line, script="train.py")
        assert resolved.origins["workers"] == COMMAND_LINE
        ours, theirs = pair()
        self.port, port = SocketPort(SUPERVISOR), SocketPort(BROKER)
        self.port.adopt(BROKER, ours)
        port.adopt(SUPERVISOR, theirs)
        self.cluster, self.told = cluster, list[Message]()
        self.broker = Broker(port, Brief("token", "broker", 0, 0, 0, -1, -1, resolved), cluster, b"the key")
        self.ports = (self.port, port)

    def turn(self, until: Callable[[], object] = lambda: False, *, at_most: int = 2000) -> None:
        """Let the broker go on until something is so."""
        for _ in range(at_most):
            if until():
                return
            self.broker._turn()
            while (delivery := self.port.receive(0.0)) is not None:
                if delivery.message is not None:
                    self.told.append(delivery.message)
        assert until(), self.told

    def begin(self) -> None:
        """Up to a run whose processes run."""
        self.broker._reserve()
        self.turn(lambda: self.of(Placed))
        self.port.send(BROKER, Listening("10.0.0.9", 5))
        num_begun = self.of(Placed)[0].num_workers + len([berth for berth in self.cluster.berths if berth.place == 0])
        self.turn(lambda: sum(bool(berth.told) for berth in self.cluster.berths) >= num_begun)
        self.turn(lambda: not any(method == "begin" for _, method in self.broker._calls.values()))

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.told if isinstance(message, kind)]

    def news(self, berth: Berth, *told: Message, output: bytes = b"", status: int | None = None) -> None:
        """A process says something, or ends."""
        berth.answers["news"] = [Answer({"output": output, "told": [encode(message) for message in told], "status": status})]


Begin = Callable[..., Stage]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    stages: list[Stage] = []
    for name, value in (("TICK_S", 0.001), ("RETRY_S", 0.002), ("QUIET_S", 0.02)):
        monkeypatch.setattr(broker_module, name, value)

    def make(cluster: Played | None = None, **given: object) -> Stage:
        stages.append(Stage(tmp_path, cluster or Played(), **{"workers": 2, "servers": 1, **given}))
        return stages[-1]

    yield make
    for one in stages:
        for port in one.ports:
            port.close(flush_s=0.0)


def test_servers_begin_first_and_workers_are_told_where_they_listen(stage: Begin) -> None:
    run = stage()
    run.begin()
    server, *workers = run.cluster.berths
    assert run.of(Placed) == [Placed("10.0.0.9", 2)]
    assert [(brief.role, brief.id) for berth in (server, *workers) for brief in berth.told] == [("server", 0), ("worker", 0), ("worker", 1)]
    assert server.told[0].servers == ()
    assert [(worker.told[0].coordinator, worker.told[0].servers) for worker in workers] == 2 * [
        (("10.0.0.9", 5), (("10.0.0.1", 7, "paceline-token-server-0"),))
    ]


def test_the_run_begins_with_those_that_have_room_and_others_join_when_there_is_more(stage: Begin) -> None:
    run = stage(Played(num_more=1), workers=4, min_workers=1)
    run.begin()
    assert run.of(Placed) == [Placed("10.0.0.9", 2)]
    _, first, second, third, _ = run.cluster.berths
    assert [berth.told[0].resolved.settings.workers for berth in (first, second)] == [2, 2]
    assert not third.told
    third.has_room = True
    run.turn(lambda: third.told)
    assert (third.told[0].id, third.told[0].incarnation, third.told[0].resolved.settings.most_workers) == (2, 0, 4)
    assert Remark("worker 2 on 10.0.0.1 joins") in run.told


def test_without_room_in_time_the_deadline_says_what_there_is(stage: Begin) -> None:
    run = stage(Played(is_full=True))
    run.broker._start_by_s = 0.0
    with pytest.raises(
        DeadlineError, match="no room for 1 servers and 2 workers of one CPU each: it has 1 CPUs on 1 nodes, 0 of them free"
    ):
        run.broker._reserve()


def test_a_lost_actor_brings_its_worker_back_in_the_next_life_under_its_number(stage: Begin) -> None:
    run = stage()
    run.begin()
    worker = run.cluster.berths[2]
    worker.answers |= {"news": [AWAY], "where": [AWAY, AWAY]}
    run.turn(lambda: len(worker.told) == 2)
    assert [(brief.id, brief.incarnation) for brief in worker.told] == [(1, 0), (1, 1)]
    assert Remark("worker 1 on 10.0.0.1 is started again") in run.told
    assert not run.of(Failed)


def test_an_actor_that_was_only_out_of_reach_keeps_its_process(stage: Begin) -> None:
    run = stage()
    run.begin()
    worker = run.cluster.berths[2]
    worker.answers |= {"news": [AWAY], "where": [Answer({**ON_A_NODE, "life": 0})]}
    run.turn(lambda: not worker.answers["where"])
    run.news(worker, output=b"still here\n")
    run.turn(lambda: not worker.answers["news"])
    assert len(worker.told) == 1


def test_a_worker_that_is_killed_again_and_again_is_given_up_and_told_of(stage: Begin) -> None:
    run = stage()
    run.begin()
    worker = run.cluster.berths[2]
    for life in range(3):
        run.turn(lambda life=life: len(worker.told) == life + 1)
        run.news(worker, status=-signal.SIGKILL)
        run.turn(lambda: not worker.answers["news"])
    run.turn(lambda: "is not started again; the last time: was killed by SIGKILL" in str(run.of(Remark)))
    assert len(worker.told) == 3
    assert not run.of(Failed)


@pytest.mark.parametrize("how", [{"answers": [GONE]}, {"status": -9}])
def test_a_lost_server_is_the_end_with_code_4(how: dict[str, Any], stage: Begin) -> None:
    run = stage()
    run.begin()
    server = run.cluster.berths[0]
    if "status" in how:
        run.news(server, status=how["status"])
    else:
        server.answers["news"] = how["answers"]
    run.turn(lambda: run.of(Failed))
    (failed,) = run.of(Failed)
    assert failed.code == 4
    assert failed.sentence.startswith("server 0 on 10.0.0.1 was ")
    assert failed.sentence.endswith("its shard of the parameters is gone with it, so the run ends")


def test_what_a_script_raises_is_told_and_who_lost_another_is_no_cause(stage: Begin) -> None:
    run = stage()
    run.begin()
    _, first, second = run.cluster.berths
    run.news(second, Failed(4, "worker 1 lost the coordinator"))
    run.turn(lambda: not second.answers["news"])
    assert not run.of(Failed)
    run.news(first, Failed(1, "worker 0: train.py raised ValueError", "Traceback"), output=b"half a line", status=1)
    run.turn(lambda: run.of(Failed))
    assert run.of(Failed) == [Failed(1, "worker 0: train.py raised ValueError", "Traceback")]
    assert run.of(Said) == [Said(("[0] half a line",))]
    assert (run.broker._run_dir / LOGS / "worker-0.log").read_text().startswith("half a lineTraceback")


def test_at_the_end_nobody_is_started_again_and_who_stays_is_signalled_then_given_up(stage: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAREWELL_S", "GRACE_S"):
        monkeypatch.setattr(broker_module, name, 0.05)
    run = stage(Played(num_more=1), workers=2, min_workers=1, max_workers=4)
    run.begin()
    server, first, second, *waiting = run.cluster.berths
    run.port.send(BROKER, Halt(0, ""))
    run.news(first, Bye(), status=0)
    run.news(second, status=-signal.SIGKILL)
    run.turn(lambda: run.broker._stages == [])
    assert server.signals == [signal.SIGTERM, signal.SIGKILL]
    assert not first.signals
    assert len(second.told) == 1
    assert not any(berth.told for berth in waiting)
    assert {member.state for member in run.broker._members} == {State.OVER}
