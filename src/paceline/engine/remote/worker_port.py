"""A worker's port to servers of which some share no memory with it: what those would read and write in place travels instead.

The session and the worker's role stay as they are. A gradient is sent, and is in place at every server, before its
Ready; the parameters of a pull are in place here before its Params is delivered. Where everyone is near, this changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from paceline.engine.remote.ahead import Ahead
from paceline.engine.remote.parts import Parts, bytes_spec, filled
from paceline.engine.remote.reach import Reach
from paceline.engine.remote.width import WIDE, Width
from paceline.errors import PacelineError, PeerLostError, ProtocolError
from paceline.messages import (
    COORDINATOR,
    Address,
    Attach,
    Disband,
    Formed,
    Hello,
    Linked,
    Message,
    ModelSpec,
    Params,
    Pull,
    Ready,
    Seeded,
    Welcome,
)
from paceline.ports import Delivery
from paceline.transport import memory
from paceline.transport.arrivals import Arrival
from paceline.transport.departures import Departure

UP_KEYS, DOWN_KEYS, AGAIN = 3, 4, 2
"""Tensors have numbers that both ends count: of a step so many, of a pull so many. A gradient is number 0, and once more AGAIN."""


class WorkerPort:
    """A `ports.Port` over `port`, whose servers are near or connected with lanes for tensors; `timeout_s` is for each transfer.

    If not all are near, reading in place becomes reading into memory of this worker's own that stands for the shards'.
    """

    def __init__(self, port: Reach, *, timeout_s: float) -> None:
        self._port = port
        self._timeout_s = timeout_s
        self._model: ModelSpec | None = None
        self._parts: Parts | None = None
        self._shared_fd = -1
        self._shared = self._arena = memoryview(b"")
        self._in_place = False
        self._sources: dict[Address, memoryview] = {}
        self._asked: dict[Address, Pull] = {}
        self._ahead: Ahead | None = None
        self._sends_ahead = True
        self._step = 0  # of those whose gradients are pushed: a group's stay here
        self._is_in_group = False
        self._widths: dict[Address, Width] = {}
        self._num_pulls: dict[Address, int] = {}
        self._coming: dict[Address, list[Arrival]] = {}

    # --- ports.Port ---------------------------------------------------------------------------------------

    def send(self, to: Address, message: Message, attachments: Sequence[int] = ()) -> None:
        """Send a message, and first what goes with it. Raises PeerLostError, DeadlineError when a transfer takes too long."""
        match message:
            case Hello(model=model):
                self._model = model
            case Attach():
                self._arena = memoryview(memory.map_shared(attachments[0]))
                attachments = attachments if self._port.is_near(to) else ()
            case Seeded():
                self._send_initial(to, message, attachments)
                return
            case Ready(buffer=buffer, in_group=False):
                self._push(buffer)
            case Formed():
                self._is_in_group = True
            case Pull() if not self._port.is_near(to):
                message = self._expect(to, message)
            case Pull() if not self._in_place:
                self._asked[to] = message
                message = Pull(message.at_least, message.copy or message.buffers, message.taken, message.buffers)
            case _:
                pass
        self._port.send(to, message, attachments)

    def receive(self, timeout_s: float) -> Delivery | None:
        """The next delivery, when what goes with it is here."""
        delivery = self._port.receive(timeout_s)
        if delivery is None:
            return None
        match delivery.message:
            case Disband():
                self._is_in_group = False
                return delivery
            case Welcome() as welcome:
                return delivery._replace(attachments=(self._welcomed(welcome, delivery.attachments),))
            case Linked() if delivery.attachments:
                self._sources[delivery.sender] = _mapped(delivery.attachments[0])
                return delivery._replace(attachments=())
            case Params() if delivery.sender in self._asked:
                self._take_over(delivery.sender.id, self._sources[delivery.sender], self._asked.pop(delivery.sender))
                return delivery
            case Params():
                return self._arrived(delivery, timeout_s)
            case _:
                return delivery

    def close(self) -> None:
        """End every connection; what is still queued is sent first."""
        self._let_go()
        self._port.close()

    # --- what travels -------------------------------------------------------------------------------------

    def _welcomed(self, welcome: Welcome, attachments: tuple[int, ...]) -> int:
        """The memory that stands for the shards': new for the first worker, who writes the initial values into it."""
        if self._model is None:
            raise ProtocolError("the coordinator welcomes a worker that has not said hello")
        self._parts = Parts(self._model, welcome.num_servers)
        is_near = self._port.is_near(COORDINATOR)
        self._in_place = is_near and all(self._port.is_near(Address("server", shard)) for shard in range(welcome.num_servers))
        if not attachments:
            fd = memory.create("parameters", self._parts.shared_bytes)
        elif self._in_place or not is_near:
            fd = attachments[0]
        else:
            # what is the coordinator's, and perhaps a server's, is not for this worker's pulls to be received into
            fd = memory.create_from("parameters", _mapped(attachments[0]))
        self._shared = memoryview(memory.map_shared(fd, self._parts.shared_bytes))
        if welcome.first:
            self._let_go()
            self._shared_fd = os.dup(fd)
        return fd

    def _send_initial(self, to: Address, seeded: Message, state: Sequence[int]) -> None:
        """The initial values become the run's own: in place they stay the same memory, else they are a copy."""
        is_to_be_copied = self._port.is_near(to) and not self._in_place
        fd = memory.create_from("parameters", self._shared) if is_to_be_copied else os.dup(self._shared_fd)
        try:
            self._port.send(to, seeded, (fd, *state))
        finally:
            os.close(fd)
        self._let_go()

    def _let_go(self) -> None:
        if self._shared_fd >= 0:
            os.close(self._shared_fd)
            self._shared_fd = -1

    def _known(self) -> Parts:
        if self._parts is None:
            raise ProtocolError("a worker that was not welcomed exchanges tensors")
        return self._parts

    def written(self, first: int, past: int) -> bool:
        """What a backward pass has written may leave for the servers; see `Gradients.on_written` and `Ahead`."""
        if not self._sends_ahead or self._is_in_group or self._parts is None:
            return False
        if self._ahead is None:
            # what leaves ahead tells nothing of how fast a link is, so that is learned first
            known = [server.id for server in self._far() if server in self._widths and self._widths[server].is_settled]
            self._ahead = Ahead({shard: self._parts.shared(shard) for shard in known}, self._begin)
        self._ahead.written(first, past)
        return bool(self._ahead.departures)

    def _begin(self, shard: int) -> Departure:
        data = self._arena[self._known().gradient(self._step % 2, shard)[0]]
        return self._port.guess(Address("server", shard), UP_KEYS * self._step, bytes_spec(data), data)

    def _far(self) -> list[Address]:
        """The servers that tensors are sent to."""
        servers = [Address("server", shard) for shard in range(self._known().num_shards)]
        return [server for server in servers if not self._port.is_near(server)]

    def _push(self, buffer: int) -> None:
        """Send a gradient, or what has not left of it; returns when every server has all of it."""
        parts, ahead, step = self._known(), self._ahead, self._step
        begun = ahead.departures if ahead is not None else {}
        is_missed = ahead is not None and ahead.is_missed
        self._ahead, self._step = None, step + 1
        departures: list[tuple[Address, Departure]] = []
        for server in self._far():
            for number, place in enumerate(parts.gradient(buffer, server.id)):
                data = self._arena[place]
                if number == 0 and server.id in begun:
                    begun[server.id].is_guess = is_missed
                    begun[server.id].release(len(data))
                else:
                    departures.append((server, self._port.start(server, UP_KEYS * step + number, bytes_spec(data), data)))
        self._await(departures)
        for departure in begun.values():
            departure.wait(self._timeout_s)
        if is_missed:
            self._sends_ahead = False
            places = {Address("server", shard): self._arena[parts.gradient(buffer, shard)[0]] for shard in begun}
            again = UP_KEYS * step + AGAIN
            self._await([(server, self._port.start(server, again, bytes_spec(data), data)) for server, data in places.items()])

    def _await(self, departures: list[tuple[Address, Departure]]) -> None:
        """Until all of them are in place, which tells how fast a link is."""
        start_s = monotonic()
        for server, departure in departures:
            departure.wait(self._timeout_s)
            if self._widths.setdefault(server, Width()).learn(departure.spec.size_bytes, monotonic() - start_s):
                # without them things go on as they went; a peer that is gone, or has given this worker up, is told of by what comes next
                with suppress(PacelineError):
                    self._port.widen(server, lanes=WIDE)

    def _expect(self, server: Address, pull: Pull) -> Pull:
        """Name the places of what a pull brings. Without `copy` it is sent from where nobody writes until the next Ready."""
        parts, shard = self._known(), server.id
        places = [self._arena[parts.private(shard)] if pull.copy else self._shared[parts.shared(shard)]]
        if pull.buffers:
            places += [self._arena[parts.mean_buffers], self._shared[parts.constants]]
        first = DOWN_KEYS * self._num_pulls.get(server, 0)
        self._num_pulls[server] = self._num_pulls.get(server, 0) + 1
        self._coming[server] = [
            self._port.expect(server, first + number, bytes_spec(place), place) for number, place in enumerate(filled(places))
        ]
        return Pull(pull.at_least, pull.copy or pull.buffers, pull.taken, pull.buffers)

    def _take_over(self, shard: int, source: memoryview, asked: Pull) -> None:
        """What a server that is near left to be read in place, for a worker that does not read all of them there."""
        parts = self._known()
        if not asked.copy:
            place = parts.shared(shard)
            self._shared[place] = source[place]
        if asked.buffers and shard == 0:
            self._shared[parts.constants] = source[parts.constants]

    def _arrived(self, delivery: Delivery, timeout_s: float) -> Delivery | None:
        try:
            for arrival in self._coming.pop(delivery.sender, ()):
                arrival.wait(self._timeout_s)
        except PeerLostError:
            # its end is the next thing that is heard of it
            return self.receive(timeout_s)
        return delivery


def _mapped(fd: int) -> memoryview:
    """The memory of a received attachment, which is used up."""
    try:
        return memoryview(memory.map_shared(fd))
    finally:
        os.close(fd)
