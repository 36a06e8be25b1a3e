"""Between a run and its Ray cluster: has room made for the processes, starts them there, and starts workers again that were lost.

It judges nothing about the training: the coordinator, which is reached by every process, hears of losses by itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from msgspec.structs import replace

from paceline.config import Resolved
from paceline.engine.local.child import Brief, name_of
from paceline.engine.local.family import signal_name
from paceline.engine.ray.cluster import Answer, Cluster
from paceline.engine.ray.member import MOST_SHORT_LIVES, SHORT_S, Member, State
from paceline.engine.torchrun.place import machine, shares_memory
from paceline.errors import DeadlineError, ExitCode, PeerLostError
from paceline.messages import COORDINATOR, SUPERVISOR, Address, Bye, Failed, Halt, Listening, Message, Placed, Remark, Said, decode
from paceline.roles.patience import LEAST_WAIT_S
from paceline.transport.shm import SocketPort

TICK_S = 0.1
NEWS_S = 0.5
"""How long an actor may keep a call for news; what else it is asked to do waits for that."""
RETRY_S = 0.5
QUIET_S = 5.0
"""Ray starts an actor within seconds where there is room: after so long without one, the run begins with those that are there."""
FAREWELL_S = 10.0
GRACE_S = 2.0
HANDED_ON = ("PYTHONPATH", "PACELINE_WIRE", "PACELINE_SAME_HOST", "PACELINE_SILENCE")
"""Variables of the command's environment that processes elsewhere need; they have the rest of their own node's."""


def began_with(resolved: Resolved, num_workers: int) -> Resolved:
    """The settings as the processes of a run are told them, which begins with so many workers."""
    settings = resolved.settings
    return Resolved(replace(settings, workers=num_workers, max_workers=settings.most_workers), resolved.origins)


class Broker:
    """The processes of one run under Ray, from the room they are given to their end; `port` is to the supervisor."""

    def __init__(self, port: SocketPort, brief: Brief, cluster: Cluster, key: bytes) -> None:
        self._port, self._cluster, self._key = port, cluster, key
        self._token = brief.token
        self._resolved = brief.resolved
        self._settings = settings = brief.resolved.settings
        self._run_dir = Path(settings.out)
        self._environ = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
        self._servers: list[Member] = []
        self._workers: list[Member] = []
        self._num_named = settings.least_workers
        self._calls: dict[Any, tuple[Member, str]] = {}
        self._again: list[tuple[float, Member]] = []
        self._placed_s: float | None = None
        self._told_placed = False
        self._coordinator: tuple[str, int] | None = None
        self._stages: list[tuple[float, Callable[[], None]]] | None = None
        self._start_by_s = monotonic() + max(settings.patience_s, LEAST_WAIT_S)

    def run(self) -> None:
        """Until all processes have ended. Raises DeadlineError when there is no room in time, WriteError."""
        self._reserve()
        while self._stages is None or any(member.state is not State.OVER for member in self._members):
            self._turn()
        self._cluster.end(member.berth for member in self._members)
        for member in self._members:
            if member.log is not None:
                member.log.close()

    @property
    def _members(self) -> list[Member]:
        return [*self._servers, *self._workers]

    # --- room ---------------------------------------------------------------------------------------------

    def _reserve(self) -> None:
        """Room for the servers and the least number of workers at once; further workers come wherever there is room later."""
        settings, cluster = self._settings, self._cluster
        num_places = settings.servers + settings.least_workers
        cluster.reserve(num_places)
        while not cluster.is_reserved(TICK_S):
            self._hear()
            if self._stages is not None:
                return
            if monotonic() > self._start_by_s:
                wanted = f"{settings.servers} servers and {settings.least_workers} workers of one CPU each"
                raise DeadlineError(f"the Ray cluster has no room for {wanted}: {cluster.room()}")
        for place in range(num_places):
            shard = place if place < settings.servers else None
            who = Address("worker", place - settings.servers) if shard is None else Address("server", shard)
            member = Member(who, cluster.berth(place, restarts=shard is None))
            (self._workers if shard is None else self._servers).append(member)
        for _ in range(settings.most_workers - settings.least_workers):
            self._workers.append(Member(None, cluster.berth(None, restarts=True)))
        # actors begin one after the other, and each is a process that imports
        self._start_by_s = monotonic() + max(settings.patience_s, 2 * LEAST_WAIT_S)
        for member in self._members:
            self._ask(member, "where")

    def _ask(self, member: Member, method: str, *arguments: object) -> None:
        self._calls[self._cluster.call(member.berth, method, *arguments)] = (member, method)

    def _place(self, member: Member, where: dict[str, Any]) -> None:
        """There is an actor; another process of the member begins if the last one has not outlived its actor."""
        now_s = monotonic()
        if member.who is None:
            member.who = Address("worker", self._num_named)
            self._num_named += 1
        member.host, member.machine, self._placed_s = str(where["host"]), str(where["machine"]), now_s
        if member.was_begun:
            if where["life"] == member.life and not (member.is_server and member.endpoint is None):
                member.state = State.RUNNING
                self._ask(member, "news", NEWS_S)
            else:
                self._died(member, "was lost with its actor")
            return
        member.state = State.PLACED
        if self._told_placed and self._coordinator is not None and self._servers_listen:
            word = "is started again" if member.life else "joins"
            self._tell(Remark(f"{member} {word}"))
            self._begin(member)

    def _begin_if_placed(self, now_s: float) -> None:
        """The run begins with the workers that have room, once all of them do or no more come."""
        if self._told_placed or self._stages is not None:
            return
        placed = [worker for worker in self._workers if worker.state is State.PLACED]
        core = [*self._servers, *self._workers[: self._settings.least_workers]]
        missing = [str(member) for member in core if member.state is not State.PLACED]
        is_quiet = self._placed_s is not None and now_s - self._placed_s > QUIET_S
        if not missing and (len(placed) >= self._settings.workers or is_quiet):
            self._told_placed = True
            self._resolved = began_with(self._resolved, len(placed))
            self._tell(Placed(self._cluster.host, len(placed)))
        elif missing and now_s > self._start_by_s:
            raise DeadlineError(f"Ray has not started {', '.join(missing)} in time: {self._cluster.room()}")

    # --- processes ----------------------------------------------------------------------------------------

    @property
    def _servers_listen(self) -> bool:
        return all(server.endpoint is not None for server in self._servers)

    def _begin(self, member: Member) -> None:
        """Start a process. The key goes as an argument of this call, so it is in no record of Ray's about the actor."""
        assert member.who is not None
        servers = tuple((*server.endpoint, self._near(member, server)) for server in self._servers if server.endpoint is not None)
        near = name_of(self._token, COORDINATOR) if self._is_near(member, machine()) else ""
        who, life, at = member.who, member.life, self._coordinator
        brief = Brief(self._token, who.role, who.id, life, 0, -1, -1, self._resolved, member.host, at, near, servers)
        member.begin(monotonic())
        self._ask(member, "begin", msgspec.json.encode(brief), self._key, self._environ, os.getcwd())

    def _is_near(self, member: Member, its_machine: str) -> bool:
        """Whether a member may share memory with what is on a machine; whether it can, it finds out."""
        return bool(its_machine) and member.machine == its_machine and shares_memory(os.environ)

    def _near(self, member: Member, server: Member) -> str:
        return name_of(self._token, server.who) if server.who is not None and self._is_near(member, server.machine) else ""

    def _has_begun(self, member: Member, answer: dict[str, Any]) -> None:
        error = answer.get("error")
        if error:
            member.state = State.OVER
            is_needed = member in (*self._servers, *self._workers[: self._settings.least_workers]) and not member.life
            self._tell(Failed(ExitCode.BAD_USAGE, str(error)) if is_needed else Remark(str(error)))
            return
        member.state = State.RUNNING
        self._ask(member, "news", NEWS_S)
        if member.is_server:
            member.endpoint = (str(answer["host"]), int(answer["port"]))
        if member.is_server and self._servers_listen:
            for worker in self._workers:
                if worker.state is State.PLACED:
                    self._begin(worker)

    def _news(self, member: Member, news: dict[str, Any]) -> None:
        status = news["status"]
        self._show(member, member.write(self._run_dir, news["output"], is_last=status is not None))
        for data in news["told"]:
            message = decode(data)
            if isinstance(message, Failed):
                member.failed = message
                assert member.log is not None
                member.log.note(f"{message.text}{message.sentence}\n")
                if member.has_ended_the_run:
                    self._tell(message)
            elif isinstance(message, Bye):
                member.said_bye = True
        if status is None:
            self._ask(member, "news", NEWS_S)
        else:
            self._ended(member, status)

    def _show(self, member: Member, lines: list[str]) -> None:
        """Of the workers the lowest that runs; servers always, as they print only what has gone wrong."""
        assert member.who is not None
        lowest = next((worker for worker in self._workers if worker.state is State.RUNNING), member)
        if lines and (member.is_server or member is lowest):
            prefix = f"{member.who}: " if member.is_server else f"[{member.who.id}] "
            self._tell(Said(tuple(prefix + line for line in lines)))

    def _ended(self, member: Member, status: int) -> None:
        """A process has ended: by itself, or it was killed."""
        if status == 0 or self._stages is not None or member.said_bye or member.has_ended_the_run:
            member.state = State.OVER
        elif status < 0 or member.failed is not None:
            self._died(member, f"was killed by {signal_name(status)}" if member.failed is None else member.failed.sentence)
        else:
            member.state = State.OVER
            self._tell(Failed(ExitCode.SCRIPT_FAILED, f"{member} ended with status {status}"))

    # --- losses -------------------------------------------------------------------------------------------

    def _died(self, member: Member, how: str) -> None:
        """A process is gone that was not to end: a server is the end of the run, a worker comes again."""
        if self._stages is not None:
            member.state = State.OVER
        elif member.is_server:
            member.state = State.OVER
            sentence = f"{member} {how}: its shard of the parameters is gone with it, so the run ends"
            self._tell(Failed(ExitCode.PEER_LOST, sentence))
        elif member.lose(monotonic()):
            self._again.append((monotonic() + RETRY_S, member))
        else:
            often = f"has ended {MOST_SHORT_LIVES} times within {SHORT_S:g} s of its start and is not started again"
            self._tell(Remark(f"{member} {often}; the last time: {how}"))

    def _unanswered(self, member: Member, answer: Answer) -> None:
        """An actor is not there, maybe for good: the process that it had may be gone, which the next one tells."""
        if member.state is State.OVER:
            return
        if self._stages is not None:
            member.state = State.OVER
        elif answer.for_good:
            how = f"was lost with its actor ({answer.reason})"
            if member.is_server:
                self._died(member, how)
            else:
                member.state = State.OVER
                self._tell(Remark(f"{member} {how} and does not come back"))
        else:
            if not member.is_server:
                member.state = State.PLACING
            self._again.append((monotonic() + RETRY_S, member))

    # --- the loop -----------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for call, answer in self._cluster.answers(self._calls, TICK_S) if self._calls else ():
            member, method = self._calls.pop(call)
            if answer.value is None:
                self._unanswered(member, answer)
            elif method == "where" and member.state is not State.OVER:
                self._place(member, answer.value)
            elif method == "begin" and member.state is not State.OVER:
                self._has_begun(member, answer.value)
            elif method == "news":
                self._news(member, answer.value)
        self._hear(0.0 if self._calls else TICK_S)
        now_s = monotonic()
        for _, member in [one for one in self._again if one[0] <= now_s]:
            self._ask(member, "where")
        self._again = [one for one in self._again if one[0] > now_s]
        self._begin_if_placed(now_s)
        while self._stages and now_s >= self._stages[0][0]:
            self._stages.pop(0)[1]()

    def _hear(self, timeout_s: float = 0.0) -> None:
        while (delivery := self._port.receive(timeout_s)) is not None:
            timeout_s = 0.0
            match delivery.message:
                case Listening(host=host, port=port):
                    self._coordinator = (host, port)
                    for server in self._servers:
                        self._begin(server)
                case Halt(code=code):
                    self._halt(FAREWELL_S if code == 0 else GRACE_S)
                case _:
                    self._halt(0.0)

    def _halt(self, grace_s: float) -> None:
        """The run is over: processes end by themselves, then by TERM, then by KILL; nobody is waited for who has none."""
        now_s = monotonic()
        self._stages = [
            (now_s + grace_s, lambda: self._signal(signal.SIGTERM)),
            (now_s + grace_s + GRACE_S, lambda: self._signal(signal.SIGKILL)),
            (now_s + grace_s + 2 * GRACE_S, self._give_up),
        ]
        for member in self._members:
            if not member.has_process:
                member.state = State.OVER
        self._again.clear()

    def _signal(self, number: int) -> None:
        for member in self._members:
            if member.has_process:
                self._ask(member, "signal", int(number))

    def _give_up(self) -> None:
        """What is there still ends with its actor."""
        for member in self._members:
            member.state = State.OVER

    def _tell(self, message: Message) -> None:
        with suppress(PeerLostError):
            self._port.send(SUPERVISOR, message)
