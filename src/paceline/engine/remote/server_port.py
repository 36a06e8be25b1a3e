"""A server's port to workers of which some share no memory with it: it makes their arenas itself and receives into them.

The server's role and its store stay as they are. A gradient's place is named before its worker can send it; the parameters
of a pull stream while the update is still being made: from a copy in the worker's arena here or, where the pull wants none,
from the shard. A worker that is near brings its own arena, and is given the server's memory with its Linked.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from paceline.engine.remote.parts import Parts, bytes_spec, filled
from paceline.engine.remote.reach import Reach
from paceline.engine.remote.width import WIDE
from paceline.engine.remote.worker_port import AGAIN, DOWN_KEYS, UP_KEYS
from paceline.errors import PeerLostError, ProtocolError
from paceline.messages import Address, Attach, Finished, Linked, Message, Params, Pull, Serve
from paceline.ports import Delivery
from paceline.transport import memory
from paceline.transport.arrivals import Arrival
from paceline.transport.departures import Departure

NUM_AHEAD = WIDE + 2
"""Steps whose places are named in advance. Each lane's thread may still have to note one that has arrived, so at least two of them
are free whenever a worker is told to go on, and it takes one before it is told again."""


class Step(NamedTuple):
    """Where the gradient of a step is to land, with what goes beside it, and once more if it was sent ahead and has changed."""

    parts: tuple[Arrival, ...]
    again: Arrival


class Guest:
    """A worker's arena on this side, and how far its steps and pulls have come."""

    def __init__(self, arena: memoryview) -> None:
        self.arena = arena
        self.next_step = 0
        self.num_pulls = 0
        self.pull = Pull(0, True)
        self.coming: deque[Step] = deque()
        self.stream: Departure | None = None


class ServerPort:
    """A `ports.Port` over `port`, to the coordinator and to workers that are near or have lanes for tensors."""

    def __init__(self, port: Reach, shard: int) -> None:
        self._port = port
        self._shard = shard
        self._parts: Parts | None = None
        self._shared = memoryview(b"")
        self._shared_fd = -1
        self._guests: dict[Address, Guest] = {}
        self._early: list[Delivery] = []
        self._due: deque[Delivery] = deque()
        self._passed_over: deque[Delivery] = deque()

    # --- ports.Port ---------------------------------------------------------------------------------------

    def send(self, to: Address, message: Message, attachments: Sequence[int] = ()) -> None:
        """Send a message and what goes with it; never waits. Raises PeerLostError."""
        match message:
            case Linked() if self._port.is_near(to):
                attachments = (self._shared_fd,)
            case Linked():
                self._expect(to)
            case Params() if not self._port.is_near(to):
                self._expect(to)
                self._start(to)
            case Finished() if self._parts is not None and not self._port.is_near(to):
                self._send_final(to, message)
                return
            case _:
                pass
        self._port.send(to, message, attachments)

    def receive(self, timeout_s: float) -> Delivery | None:
        """The next delivery; a worker's memory is made here."""
        if self._due:
            return self._due.popleft()
        delivery = self._passed_over.popleft() if self._passed_over else self._port.receive(timeout_s)
        if delivery is None:
            return None
        match delivery.message:
            case Serve() as serve:
                self._parts = Parts(serve.model, serve.num_shards)
                self._shared = memoryview(memory.map_shared(delivery.attachments[0], self._parts.shared_bytes))
                self._let_go()
                self._shared_fd = os.dup(delivery.attachments[0])
                self._due += [self._hosted(early, self._parts) for early in self._early]
                self._early.clear()
            case Attach() if not self._port.is_near(delivery.sender):
                if self._parts is None:
                    # the size of its memory is known with the model
                    self._early.append(delivery)
                    return None
                return self._hosted(delivery, self._parts)
            case Pull() as pull if delivery.sender in self._guests:
                self._guests[delivery.sender].pull = pull
            case None:
                self._guests.pop(delivery.sender, None)
            case _:
                pass
        return delivery

    def close(self) -> None:
        """End every connection; what is still queued is sent first."""
        self._let_go()
        self._port.close()

    def _let_go(self) -> None:
        if self._shared_fd >= 0:
            os.close(self._shared_fd)
            self._shared_fd = -1

    # --- pulls that are answered while their update is made -----------------------------------------------

    def pulls(self) -> Iterator[tuple[Address, Pull]]:
        """The pulls of workers that are not near, of those that have come by now; everything else waits for `receive`."""
        while (delivery := self._port.receive(0.0)) is not None:
            if isinstance(delivery.message, Pull) and delivery.sender in self._guests:
                self._guests[delivery.sender].pull = delivery.message
                yield delivery.sender, delivery.message
            else:
                self._passed_over.append(delivery)

    def begin_stream(self, worker: Address) -> bool:
        """Begin to send a worker's parameters, of which nothing is there yet; false when they are on their way, or it has no need."""
        guest = self._guests.get(worker)
        if guest is None or guest.stream is not None or self._parts is None:
            return False
        data = self._parameters(self._parts, guest)
        with suppress(PeerLostError):
            guest.stream = self._port.start(worker, DOWN_KEYS * guest.num_pulls, bytes_spec(data), data, released_bytes=0)
        return guest.stream is not None

    def go_on(self, num_bytes: int) -> None:
        """Of every stream so many bytes are there now."""
        for guest in self._guests.values():
            if guest.stream is not None:
                guest.stream.release(num_bytes)

    # --- what travels -------------------------------------------------------------------------------------

    def _hosted(self, attach: Delivery, parts: Parts) -> Delivery:
        """The worker's Attach with an arena on this side."""
        fd = memory.create("arena", parts.arena_bytes)
        self._guests[attach.sender] = Guest(memoryview(memory.map_shared(fd)))
        return attach._replace(attachments=(fd,))

    def _known(self, worker: Address) -> tuple[Parts, Guest]:
        guest = self._guests.get(worker)
        if self._parts is None or guest is None:
            raise ProtocolError(f"server {self._shard} has no memory for {worker}")
        return self._parts, guest

    def _expect(self, worker: Address) -> None:
        """Name the places of the steps to come. The worker waits for this server now, so it sends nothing of a step again."""
        parts, guest = self._known(worker)
        while guest.coming and all(arrival.is_complete for arrival in guest.coming[0].parts):
            guest.coming.popleft().again.withdraw()
        while len(guest.coming) < NUM_AHEAD and parts.gradient(0, self._shard):
            first = UP_KEYS * guest.next_step
            data = [guest.arena[place] for place in parts.gradient(guest.next_step % 2, self._shard)]
            own = [self._port.expect(worker, first + number, bytes_spec(place), place) for number, place in enumerate(data)]
            guest.coming.append(Step(tuple(own), self._port.expect(worker, first + AGAIN, bytes_spec(data[0]), data[0])))
            guest.next_step += 1

    def _start(self, worker: Address) -> None:
        """Send what a pull brings; it does not change before the worker has all of it and says Ready or pulls again."""
        parts, guest = self._known(worker)
        has_begun = guest.stream is not None
        guest.stream = None
        values = [self._parameters(parts, guest)]
        if guest.pull.buffers:
            values += [guest.arena[parts.mean_buffers], self._shared[parts.constants]]
        for number, data in enumerate(filled(values)):
            if has_begun and number == 0:
                continue
            self._port.start(worker, DOWN_KEYS * guest.num_pulls + number, bytes_spec(data), data)
        guest.num_pulls += 1

    def _parameters(self, parts: Parts, guest: Guest) -> memoryview:
        """What a pull brings: the copy that was made for it, or the shard itself, which does not change before the worker's Ready."""
        return guest.arena[parts.private(self._shard)] if guest.pull.copy else self._shared[parts.shared(self._shard)]

    def _send_final(self, to: Address, finished: Message) -> None:
        """The shard's last values go with its Finished, for the final model."""
        assert self._parts is not None
        descriptors = [memory.create_from("final", self._shared[place]) for place in self._parts.final(self._shard)]
        try:
            self._port.send(to, finished, descriptors)
        finally:
            for fd in descriptors:
                os.close(fd)
