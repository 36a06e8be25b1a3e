"""The coordinator's process: carries the role's effects out, over sockets and into the run directory. No torch."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic

from paceline.config import DEFAULT, Resolved
from paceline.engine.carry import carry
from paceline.engine.exchange import Exchange
from paceline.engine.local.advisor import ROLE, Advisor, Answer
from paceline.engine.local.child import begin, listener_of
from paceline.engine.local.final import write_final
from paceline.errors import ConfigError, ExitCode, PeerLostError, WriteError
from paceline.hybrid import Hybrid, start_of
from paceline.logic.partition import LEAST_FAR_SHARD_BYTES, LEAST_SHARD_BYTES, layout_of, parameter_arena_bytes
from paceline.messages import (
    SUPERVISOR,
    Address,
    Bye,
    Drawn,
    Failed,
    Gone,
    Halt,
    Handed,
    Hello,
    Load,
    Message,
    Plan,
    Remark,
    Restate,
    Seeded,
    Serve,
    Welcome,
)
from paceline.ports import Delivery
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import Consult, Decide, Effect, End, JobSettings, Metrics, Note, Send, Warn
from paceline.trace.record import RunRecord
from paceline.transport import memory

PROGRESS_S = 0.2


def job_settings(resolved: Resolved) -> JobSettings:
    """What the role has to know of the settings."""
    settings = resolved.settings
    mode = settings.pace
    return JobSettings(
        num_workers=settings.workers,
        num_servers=settings.servers,
        pace=start_of(mode),
        pace_is_open=resolved.pace_is_open,
        servers_are_open=resolved.origins["servers"] == DEFAULT,
        least_shard_bytes=LEAST_FAR_SHARD_BYTES if settings.engine == "torchrun" else LEAST_SHARD_BYTES,
        workers_come_once=settings.engine == "local",
        lr_rule=settings.lr_rule,
        patience_s=settings.patience_s,
        hybrid=mode if isinstance(mode, Hybrid) else None,
        shares=settings.shares,
        route=settings.route_in_force,
    )


class Keeper:
    """The attachments that a role speaks of but never sees: kept when they arrive, added to what needs them."""

    def __init__(self) -> None:
        self._kept: dict[type[Message], int] = {}
        self.arena: int | None = None

    def keep(self, message: Message, attachments: tuple[int, ...], sender: Address, role: Coordinator) -> None:
        """Take over the attachments of a message that arrived from `sender` and that `role` has not seen yet."""
        unneeded = list(attachments)
        # a state that is passed over must not take the place of one that waits to be loaded
        is_passed_over = isinstance(message, Load) and role.wishes.passes_over(sender.id)
        if isinstance(message, Drawn | Seeded | Load | Handed) and not is_passed_over:
            former, self._kept[type(message)] = self._kept.get(type(message)), unneeded.pop(0)
            unneeded += [] if former is None else [former]
        for fd in unneeded:
            os.close(fd)

    def attach(self, send: Send, role: Coordinator) -> Send:
        """The message with the attachments that belong to it."""
        match send.message:
            case Welcome():
                return send._replace(attachments=(self._arena_of(role),))
            case Serve(has_optimizer_state=has_state):
                seed = (self._kept[Seeded],) if has_state else ()
                return send._replace(attachments=(self._arena_of(role), *seed))
            case Plan() if Drawn in self._kept:
                return send._replace(attachments=(self._kept[Drawn],))
            case Restate(handed=handed):
                return send._replace(attachments=(self._kept[Handed if handed else Load],))
            case _:
                return send

    def _arena_of(self, role: Coordinator) -> int:
        if self.arena is None:
            assert role.job.model is not None
            self.arena = memory.create("parameters", parameter_arena_bytes(layout_of(role.job.model))[1])
        return self.arena


class CoordinatorProcess:
    """The loop around the role: what arrives goes in, what comes out is sent, recorded and reported.

    `parent` is what the process that started this one is called.
    """

    def __init__(
        self, port: Exchange, resolved: Resolved, *, keeper: Keeper | None = None, parent: str = "the supervisor (`paceline run`)"
    ) -> None:
        self._port = port
        self._run_dir = Path(resolved.settings.out)
        self._role = Coordinator(job_settings(resolved), monotonic())
        self._record = RunRecord(self._run_dir, monotonic())
        self._keeper = keeper or Keeper()
        self._parent = parent
        # a script that may still choose another policy is waited for
        self._advisor = None if resolved.pace_is_open else self._advisor_of(monotonic())
        self._left: set[Address] = set()
        self._end: End | None = None
        self._progress_due_s = 0.0

    def run(self) -> End:
        """Until the run has ended; returns how, with everything written."""
        try:
            while self._end is None:
                self._turn()
            self._halt_the_rest(self._end)
            if self._end.code == 0:
                self._write_final()
        except WriteError as error:
            self._end = self._fail(ExitCode.WRITE_FAILED, str(error))
        finally:
            if self._advisor is not None:
                self._advisor.close()
        return self._close(self._end)

    def _turn(self) -> None:
        now_s = monotonic()
        due_s = min(self._role.deadline_s, self._progress_due_s, self._record.deadline_s or self._progress_due_s)
        if self._advisor is not None:
            due_s = min(due_s, self._advisor.deadline_s)
        delivery = self._port.receive(max(0.0, due_s - now_s))
        now_s = monotonic()
        if delivery is not None:
            self._take(delivery, now_s)
        if now_s >= self._role.deadline_s:
            self._enact(self._role.expire(now_s), now_s)
        if self._advisor is not None and now_s >= self._advisor.deadline_s:
            self._advise(self._advisor.expire(now_s), now_s)
        self._record.flush_if_due(now_s)
        if now_s >= self._progress_due_s:
            self._progress_due_s = now_s + PROGRESS_S
            self._tell(self._role.status())

    # --- what comes in ------------------------------------------------------------------------------------

    def _take(self, delivery: Delivery, now_s: float) -> None:
        sender, message, attachments = delivery
        if sender == SUPERVISOR:
            self._obey(message, now_s)
        elif sender.role == ROLE:
            if self._advisor is not None:
                self._advise(self._advisor.heard(sender, message, now_s), now_s)
        elif message is None:
            self._lose(sender, self._port.reason(sender), now_s)
        else:
            if attachments:
                self._keeper.keep(message, attachments, sender, self._role)
            if isinstance(message, Hello):
                # another life of one that has left
                self._left.discard(sender)
            self._enact(self._role.handle(sender, message, now_s), now_s)
            if isinstance(message, Bye):
                self._left.add(sender)

    def _obey(self, message: Message | None, now_s: float) -> None:
        """The supervisor knows which process was killed, and when all is to end; its own end is the end of all."""
        match message:
            case Gone(worker=worker):
                self._lose(Address("worker", worker), "it was killed", now_s)
            case Halt(code=code, sentence=sentence):
                self._enact(self._end_of(code, sentence), now_s)
            case _:
                self._enact(self._end_of(ExitCode.PEER_LOST, f"{self._parent} was lost"), now_s)

    def _lose(self, who: Address, reason: str, now_s: float) -> None:
        # a killed worker is heard of twice, by its connection's end and from the supervisor; one that said Bye is not lost
        if who not in self._left:
            self._left.add(who)
            self._enact(self._role.left(who, reason, now_s), now_s)

    # --- what comes out -----------------------------------------------------------------------------------

    def _enact(self, effects: Iterable[Effect], now_s: float) -> None:
        for effect in effects:
            match effect:
                case Send():
                    # one who is gone is told of by the end of its connection
                    with suppress(PeerLostError):
                        carry(self._port, self._keeper.attach(effect, self._role))
                case Note(event=event):
                    self._record.note(event, now_s)
                case Metrics(worker=worker, metrics=metrics, epoch=epoch, samples=samples, weight=weight):
                    self._record.metrics(worker, metrics, epoch=epoch, samples=samples, weight=weight, now_s=now_s)
                case Warn(sentence=sentence):
                    self._tell(Remark(sentence))
                case Decide(record=record):
                    self._record.decide(record, now_s)
                case Consult():
                    self._advisor = self._advisor or self._advisor_of(now_s)
                    assert self._advisor is not None
                    self._advisor.ask(effect, now_s)
                case End():
                    self._end = effect

    # --- the user's own policy ----------------------------------------------------------------------------

    def _advisor_of(self, now_s: float) -> Advisor | None:
        """The policy's process, begun at once, when the run has a policy of the user's own."""
        settings = self._role.job.settings
        if settings.hybrid is None or settings.hybrid.policy != "user":
            return None
        advisor = Advisor(self._port, settings.hybrid, self._run_dir, settings.num_workers)
        advisor.start(now_s)
        return advisor

    def _advise(self, answer: Answer | None, now_s: float) -> None:
        """Tell the role what the policy says, and the user what is wrong with it."""
        assert self._advisor is not None
        while self._advisor.remarks:
            self._tell(Remark(self._advisor.remarks.pop(0)))
        if answer is not None:
            self._enact(self._role.advised(answer.number, answer.pace, answer.why, answer.error, now_s), now_s)

    def _tell(self, message: Message) -> None:
        with suppress(PeerLostError):
            self._port.send(SUPERVISOR, message)

    # --- ends ---------------------------------------------------------------------------------------------

    def _end_of(self, code: int, sentence: str) -> list[Effect]:
        """The role's effects of an end that was decided elsewhere."""
        self._role.job.end(code, sentence)
        return self._role.job.take_outbox()

    def _fail(self, code: int, sentence: str) -> End:
        """End for a reason that the record cannot hold."""
        for effect in self._end_of(code, sentence):
            if isinstance(effect, Send):
                with suppress(PeerLostError):
                    carry(self._port, effect)
        end = End(code, sentence)
        self._halt_the_rest(end)
        return end

    def _halt_the_rest(self, end: End) -> None:
        """Tell those that have not heard of the end from the role: of a good one nobody has, of a bad one who is no member."""
        told = {SUPERVISOR}
        if end.code:
            told |= {*self._role.job.all_servers, *(Address("worker", worker) for worker in self._role.job.members.workers)}
        for peer in set(self._port.peers) - told:
            with suppress(PeerLostError):
                self._port.send(peer, Halt(end.code, end.sentence))

    def _write_final(self) -> None:
        if self._keeper.arena is not None and self._role.job.model is not None:
            with memory.map_shared(self._keeper.arena) as arena, memoryview(arena) as view:
                write_final(self._run_dir, self._role.job.model, view)

    def _close(self, end: End) -> End:
        try:
            self._record.close({**self._role.summary(), "exit": int(end.code)})
        except WriteError as error:
            if end.code == 0:
                end = End(ExitCode.WRITE_FAILED, str(error))
        return end


def expected(resolved: Resolved) -> frozenset[Address]:
    """Who connects to a coordinator."""
    settings = resolved.settings
    sizes = {"worker": settings.most_workers, "server": settings.servers}
    return frozenset(Address(role, number) for role, size in sizes.items() for number in range(size))


def conduct(port: Exchange, make: Callable[[], CoordinatorProcess]) -> int:
    """Run the process that `make` makes, tell its parent how it ended, and close `port`; returns the exit code."""
    try:
        process = make()
        gc.freeze()
        end = process.run()
    except (ConfigError, WriteError) as error:
        end = End(error.exit_code, str(error))
    with suppress(PeerLostError):
        if end.sentence:
            port.send(SUPERVISOR, Failed(end.code, end.sentence) if end.code else Remark(end.sentence))
    port.close()
    return end.code


def main() -> int:
    """Run the coordinator; the exit code is the run's."""
    brief, port = begin(dies_with_parent=False)
    port.listen(listener_of(brief), expected(brief.resolved))
    return conduct(port, lambda: CoordinatorProcess(port, brief.resolved))


if __name__ == "__main__":
    sys.exit(main())
