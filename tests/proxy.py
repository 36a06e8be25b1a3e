"""A network between two ends that a test spoils while it is in use: a TCP proxy on asyncio, in a thread of its own.

Each direction has weather of its own, which may change at any time. What harm is done is drawn by the seed, the connection's
number, the direction and the place of the byte, however the kernel cuts the stream: a seed that fails repeats. Only times do not.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from math import inf
from typing import Any, Literal, NamedTuple, Self

from paceline.transport.dial import Endpoint

READ_BYTES = 1 << 14
MOST_QUEUED = 64
"""Reads that may be under way in a direction: as many bytes as a real network holds."""
DOUBLED_BYTES = 512
END_S = 5.0

Harm = Literal["", "flip", "double", "drop", "cut", "reset", "hole"]
HARMS: tuple[Harm, ...] = ("flip", "double", "drop", "cut", "reset", "hole")


class Weather(NamedTuple):
    """What one direction does to what passes. Without arguments: nothing.

    Bytes go on after `latency_s` and up to `jitter_s` more, in order, at most `bytes_per_s`, in writes of `slice_bytes`. In a `hole`
    they vanish, ends and resets too, and nobody is told.

    `harm` is done to the byte `first` of a connection, counted from when this weather began, and then every `every_bytes` on
    average (0: never again); without `first` the seed says where it begins. A bit is flipped (`flip`), the last bytes come once
    more (`double`), the byte is missing (`drop`), or in its place is an orderly end (`cut`), a reset of both ends (`reset`) or a hole.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = inf
    slice_bytes: int = READ_BYTES
    hole: bool = False
    harm: Harm = ""
    first: int | None = None
    every_bytes: int = 0


FAIR = Weather()
ANYWHERE = Endpoint("127.0.0.1", 0)


class Proxy:
    """Passes every connection to `endpoint` on; others connect to `self.endpoint`, which is `at` if that is given.

    `outward` is the weather of what those say who connect, `inward` of what they are told; connections are numbered as they come, and only
    those in `spoiled` have any weather, if it is given. `said` is all that the connecting side of each has said.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        seed: int = 0,
        outward: Weather = FAIR,
        inward: Weather = FAIR,
        at: Endpoint = ANYWHERE,
    ) -> None:
        self.seed, self.outward, self.inward = seed, outward, inward
        self.spoiled: set[int] | None = None
        self.said: list[bytearray] = []
        self._behind = endpoint
        self._listener = socket.create_server(at, backlog=256)
        self._listener.setblocking(False)
        self.endpoint = Endpoint(at.host, self._listener.getsockname()[1])
        self._open: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._accepting: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._accept(),), name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_open(self) -> int:
        """How many connections pass through now."""
        return len(self._open)

    def weather(self, outward: bool, number: int) -> Weather:
        """What a direction of a connection has now."""
        if self.spoiled is not None and number not in self.spoiled:
            return FAIR
        return self.outward if outward else self.inward

    def reset(self) -> None:
        """Reset every connection, both ends."""
        self._do(self._reset_all())

    def close(self) -> None:
        """Reset what is still open, and end the thread."""
        self._do(self._end())
        self._thread.join(END_S)
        assert not self._thread.is_alive(), "the proxy does not end"
        self._loop.close()
        self._listener.close()

    # --- in the thread --------------------------------------------------------------------------------------

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(END_S)

    async def _accept(self) -> None:
        self._accepting = asyncio.current_task()
        with suppress(asyncio.CancelledError):
            while True:
                near, _ = await self._loop.sock_accept(self._listener)
                number = len(self.said)
                self.said.append(bytearray())
                task = self._open[number] = self._loop.create_task(self._serve(number, near))
                task.add_done_callback(lambda _, number=number: self._open.pop(number))
        await self._reset_all()

    async def _reset_all(self) -> None:
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self) -> None:
        assert self._accepting is not None
        self._accepting.cancel()

    async def _serve(self, number: int, near: socket.socket) -> None:
        far = socket.socket(socket.AF_INET6 if ":" in self._behind.host else socket.AF_INET)
        try:
            for sock in (near, far):
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(far, self._behind)
            ways = (Way(self, number, near, far, outward=True), Way(self, number, far, near, outward=False))
            try:
                async with asyncio.TaskGroup() as all_four:
                    for way in ways:
                        all_four.create_task(way.run(way.read()))
                        all_four.create_task(way.run(way.write()))
            except* OSError:
                _make_reset(near, far)
        except OSError:
            _make_reset(near, far)
        except asyncio.CancelledError:
            _make_reset(near, far)
            raise
        finally:
            near.close()
            far.close()


def _make_reset(*sockets: socket.socket) -> None:
    """Let a close be a reset."""
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Way:
    """One direction of one connection: what is read waits in a queue until it is due."""

    def __init__(self, proxy: Proxy, number: int, source: socket.socket, target: socket.socket, *, outward: bool) -> None:
        self._proxy, self._number, self._outward = proxy, number, outward
        self._source, self._target = source, target
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_QUEUED)
        self._due_s = self._free_s = 0.0
        self._harming = Harming(FAIR, random.Random(0))
        self._num_weathers = 0
        self._is_hole = False
        self._delays = random.Random(f"{proxy.seed} {number} {outward} delays")

    async def run(self, part: Coroutine[Any, Any, None]) -> None:
        """Let `read` or `write` go to its end. Raises OSError when an end of the connection is reset, and not in a hole."""
        try:
            await part
        except OSError:
            if not self._vanishes():
                raise
            await asyncio.Event().wait()

    def _weather(self) -> Weather:
        weather = self._proxy.weather(self._outward, self._number)
        if weather is not self._harming.weather:
            self._num_weathers += 1
            seed = f"{self._proxy.seed} {self._number} {self._outward} {self._num_weathers}"
            self._harming = Harming(weather, random.Random(seed))
        return weather

    def _vanishes(self) -> bool:
        return self._is_hole or self._weather().hole

    async def read(self) -> None:
        """Read up to the end, which goes into the queue as well."""
        data = b" "
        while data:
            data = await self._loop.sock_recv(self._source, READ_BYTES)
            if self._outward:
                self._proxy.said[self._number] += data
            weather = self._weather()
            wait_s = weather.latency_s + self._delays.uniform(0.0, weather.jitter_s)
            self._due_s = max(self._due_s, self._loop.time() + wait_s)
            await self._queue.put((self._due_s, data))

    async def write(self) -> None:
        """Pass on what is due, up to the end."""
        while True:
            due_s, data = await self._queue.get()
            await self._until(due_s)
            weather = self._weather()
            if self._vanishes():
                continue
            if not data:
                self._target.shutdown(socket.SHUT_WR)
                return
            passed, end = self._harming.of(data)
            await self._pass_on(passed, weather)
            if end == "reset":
                raise ConnectionResetError
            if end == "cut":
                self._target.shutdown(socket.SHUT_WR)
            self._is_hole = bool(end)

    async def _pass_on(self, data: bytes, weather: Weather) -> None:
        for start in range(0, len(data), weather.slice_bytes):
            piece = data[start : start + weather.slice_bytes]
            await self._loop.sock_sendall(self._target, piece)
            if weather.bytes_per_s < inf:
                self._free_s = max(self._free_s, self._loop.time()) + len(piece) / weather.bytes_per_s
                await self._until(self._free_s)
            elif start % READ_BYTES == 0:
                await asyncio.sleep(0)

    async def _until(self, due_s: float) -> None:
        wait_s = due_s - self._loop.time()
        if wait_s > 0.0:
            await asyncio.sleep(wait_s)


class Harming:
    """The harm that one weather does to a stream of bytes: the same for the same stream, however it is cut."""

    def __init__(self, weather: Weather, chance: random.Random) -> None:
        self.weather = weather
        self._chance = chance
        self._last = b""
        self._to_next = self._next_gap() if weather.first is None else weather.first

    def _next_gap(self) -> float:
        mean = self.weather.every_bytes
        return int(self._chance.expovariate(1.0 / mean)) if self.weather.harm and mean else inf

    def of(self, data: bytes) -> tuple[bytes, Harm]:
        """What is passed on of the next bytes, and how the stream ends there, if it does."""
        passed = bytearray()
        while self.weather.harm and len(data) > self._to_next:
            past = int(self._to_next) + 1
            before, byte, data = data[: past - 1], data[past - 1], data[past:]
            self._last = (self._last + before + bytes([byte]))[-DOUBLED_BYTES:]
            passed += before
            self._to_next = self._next_gap()
            match self.weather.harm:
                case "flip":
                    passed.append(byte ^ 1 << self._chance.randrange(8))
                case "double":
                    passed += bytes([byte]) + self._last[-self._chance.randint(1, DOUBLED_BYTES) :]
                case "drop":
                    pass
                case end:
                    return bytes(passed), end
        self._last = (self._last + data)[-DOUBLED_BYTES:]
        self._to_next -= len(data)
        return bytes(passed + data), ""
