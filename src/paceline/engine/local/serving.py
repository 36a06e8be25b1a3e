"""A server between its first and its last message: maps the memory that others hand over, lets the role apply the order."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from contextlib import suppress
from time import perf_counter

import msgspec
import torch

from paceline.engine.carry import carry, take_bytes
from paceline.errors import ConfigError, ExitCode, PacelineError, PeerLostError
from paceline.logic.partition import layout_of, parameter_arena_bytes
from paceline.messages import COORDINATOR, SUPERVISOR, Address, Attach, Failed, Finish, Halt, Measured, Message, Pull, Restate, Serve
from paceline.ports import Delivery, Port
from paceline.roles.effects import Effect, End, Send
from paceline.roles.server import Server
from paceline.tensors.shard import Shard
from paceline.tensors.workplace import device_for
from paceline.transport import memory

MOST_PER_SWEEP = 256
IDLE_S = 3600.0
"""The end of a connection wakes a server up; a silent coordinator is the supervisor's to judge."""


def tensor_over(attachment: int, size_bytes: int | None = None) -> torch.Tensor:
    """The bytes of a received memory file, as a tensor that keeps its map alive; the attachment is used up."""
    try:
        return torch.frombuffer(memory.map_shared(attachment, size_bytes), dtype=torch.uint8)
    finally:
        os.close(attachment)


def opened(message: Message, attachments: tuple[int, ...]) -> tuple[object, ...]:
    """What a server's role takes in place of the descriptors that came with a message."""
    match message:
        case Serve(model=model) if attachments:
            arena = tensor_over(attachments[0], parameter_arena_bytes(layout_of(model))[1])
            return (arena, *map(take_bytes, attachments[1:]))
        case Attach() if attachments:
            return (tensor_over(attachments[0]),)
        case Restate():
            return tuple(map(take_bytes, attachments))
        case _:
            return attachments


def shard_of(serve: Serve, attachments: tuple[object, ...], device: torch.device | None = None) -> Shard:
    """The store of a server: its part of the parameters over what `opened` gave; with a `device` the optimizer works there."""
    arena, *state = attachments
    assert isinstance(arena, torch.Tensor)
    shard = Shard(serve.model, serve.shard, serve.num_shards, arena, device=device)
    for part in state:
        assert isinstance(part, bytes)
        shard.load(part, parameters=False, optimizer=True)
    if serve.pace is not None:
        shard.begin(serve.pace)
    return shard


class ServerProcess:
    """The loop around the role; `device` is that of `--server-device`."""

    def __init__(self, port: Port, me: Address, device: str = "cpu") -> None:
        self._port = port
        self._device = device
        self._me = me
        self._role = Server(me.id, self._build)
        self._workers: set[Address] = set()
        self._finishing = False
        self._end: End | None = None
        self._busy_s = 0.0

    def run(self) -> End:
        """Until the run has ended; returns how. Raises ConfigError when the device's memory does not suffice."""
        try:
            while self._end is None:
                for delivery in self._sweep():
                    self._take(delivery)
                    if self._end is not None:
                        break
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"--server-device {self._device} has too little memory for this shard: {str(error).splitlines()[0]}"
            ) from error
        return self._end

    def _sweep(self) -> list[Delivery]:
        """Everything that has arrived, the order before the pulls, so that these read the newest."""
        delivery = None
        while delivery is None and self._role.idle():
            delivery = self._port.receive(0.0)
        if delivery is None:
            delivery = self._port.receive(IDLE_S)
        swept: list[Delivery] = []
        while delivery is not None and len(swept) < MOST_PER_SWEEP:
            swept.append(delivery)
            delivery = self._port.receive(0.0)
        if delivery is not None:
            swept.append(delivery)
        return sorted(swept, key=lambda one: isinstance(one.message, Pull)) if len(swept) > 1 else swept

    def _take(self, delivery: Delivery) -> None:
        sender, message, attachments = delivery
        match message:
            case None:
                self._lose(sender)
            case Halt(code=code, sentence=sentence):
                self._end = End(code, sentence)
            case _:
                if sender.role == "worker":
                    self._workers.add(sender)
                self._finishing = self._finishing or isinstance(message, Finish)
                self._enact(self._handle(sender, message, opened(message, attachments)))

    def _handle(self, sender: Address, message: Message, attachments: tuple[object, ...]) -> list[Effect]:
        """Let the role handle it, and note how long the shard was busy with the update: all that it did since the one before."""
        version, start_s = self._role.version, perf_counter()
        effects = self._role.handle(sender, message, attachments)
        self._busy_s += perf_counter() - start_s
        effects = [self._timed(effect) for effect in effects]
        if self._role.version != version:
            self._busy_s = 0.0
        return effects

    def _timed(self, effect: Effect) -> Effect:
        if isinstance(effect, Send) and isinstance(effect.message, Measured):
            return effect._replace(message=msgspec.structs.replace(effect.message, busy_s=self._busy_s))
        return effect

    def _build(self, serve: Serve, attachments: tuple[object, ...]) -> Shard:
        shard = shard_of(serve, attachments, device_for(self._device, self._me.id))
        gc.freeze()
        return shard

    def _lose(self, who: Address) -> None:
        if who.role == "worker":
            self._workers.discard(who)
            self._enact(self._role.left(who))
        elif self._finishing:
            self._end = End(0, "")
        else:
            self._end = End(ExitCode.PEER_LOST, f"{self._me} lost the {who}")
            if who == COORDINATOR:
                # nobody else tells them, and to workers the end of this server would seem to be the cause
                self._tell(self._workers, Halt(self._end.code, self._end.sentence))

    def _enact(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                with suppress(PeerLostError):
                    carry(self._port, effect)
            elif isinstance(effect, End):
                self._fail(effect)

    def _fail(self, end: End) -> None:
        self._end = end
        self._tell((SUPERVISOR, COORDINATOR), Failed(end.code, end.sentence))

    def _tell(self, everyone: Iterable[Address], message: Message) -> None:
        for who in everyone:
            with suppress(PeerLostError):
                self._port.send(who, message)

    def fail(self, error: PacelineError) -> int:
        """Tell everyone that this shard cannot go on; returns the exit code."""
        self._fail(End(error.exit_code, f"{self._me}: {error}"))
        return error.exit_code
