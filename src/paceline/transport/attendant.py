"""The thread of a port that never computes: it takes connections in and keeps the heartbeats going, both ways.

A heartbeat carries how often its sender has gone on, so that a process which lives and one which moves are told apart.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from time import monotonic
from weakref import WeakValueDictionary

from paceline.errors import ProtocolError
from paceline.transport.lanes import ENDED
from paceline.transport.peer import Peer
from paceline.transport.reception import Reception
from paceline.transport.stream import Line, Outgoing, Stream
from paceline.transport.wire import Kind

_PROGRESS = struct.Struct("<Q")
MOST_INTERVAL_S = 2.0
"""Heartbeats are no further apart, so all who lose a peer by its silence do so within about that time, however long that may be."""


class Attendant(Thread):
    """Serves one port. `progress` is read for each heartbeat, `generation` for its frame; `silence_s` without any loses a peer."""

    def __init__(self, *, silence_s: float, progress: Callable[[], int], generation: Callable[[], int]) -> None:
        super().__init__(name="paceline attendant", daemon=True)
        self.reception: Reception | None = None
        self.epoll = select.epoll()
        self._silence_s = silence_s
        self._interval_s = min(silence_s / 8, MOST_INTERVAL_S)
        self._progress = progress
        self._generation = generation
        self._listener: socket.socket | None = None
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.epoll.register(self._waker, select.EPOLLIN)
        self._ending = False
        self._peers: set[Peer] = set()
        self._pulses: dict[int, tuple[Peer, Stream]] = {}
        self._helped: WeakValueDictionary[int, Stream] = WeakValueDictionary()

    # --- from other threads -----------------------------------------------------------------------------------

    def listen(self, listener: socket.socket, reception: Reception) -> None:
        """Take connections in from now on."""
        self.reception = reception
        # the thread runs already: it finds the listener only when it may change how it waits for it
        self.epoll.register(listener.fileno(), select.EPOLLIN)
        self._listener = listener

    def watch(self, peer: Peer) -> None:
        """Expect heartbeats of a peer."""
        # a set is read whole in `_judge`; adding to it is one step for other threads
        self._peers.add(peer)

    def pulse(self, peer: Peer, line: Line) -> None:
        """A peer's connection for heartbeats."""
        peer.add(line.sock)
        self.epoll.register(line.sock.fileno(), select.EPOLLIN)
        self._pulses[line.sock.fileno()] = (peer, Stream(line, (Kind.PULSE,)))

    def help_out(self, stream: Stream) -> None:
        """Send what a stream has queued, as soon as its socket takes it."""
        fd = stream.sock.fileno()
        self._helped[fd] = stream
        # one event at a time: an end of the connection is the owner's to notice, and would be told without pause
        events = select.EPOLLOUT | select.EPOLLONESHOT
        with suppress(OSError, ValueError):
            # it may have been closed meanwhile, and then nothing is left to send
            try:
                self.epoll.modify(fd, events)
            except FileNotFoundError:
                self.epoll.register(fd, events)

    def end(self) -> None:
        """End the thread and close what is its own."""
        self._ending = True
        os.eventfd_write(self._waker, 1)
        if self.ident is not None:
            self.join()
        self._close()

    # --- the thread ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `end`; a failure is told to whoever waits for a peer."""
        try:
            self._serve_all()
        finally:
            for peer in list(self._peers) if not self._ending else ():
                peer.lose("the thread that keeps its heartbeats failed")

    def _serve_all(self) -> None:
        due_s = monotonic()
        while not self._ending:
            for fd, events in self.epoll.poll(max(0.0, due_s - monotonic())):
                self._serve(fd, events)
            now_s = monotonic()
            if now_s >= due_s:
                # a process that was stopped itself has heard nobody: it listens once more before it judges
                was_away = now_s - due_s > self._silence_s / 2
                due_s = now_s + self._interval_s
                self._beat()
                self._judge(now_s, was_away=was_away)

    def _serve(self, fd: int, events: int) -> None:
        now_s = monotonic()
        stream = self._helped.get(fd)
        # a descriptor may have been closed and be another connection's now
        if stream is not None and stream.fileno() == fd:
            if not stream.go_on():
                self.help_out(stream)
        elif fd in self._pulses:
            self._listen_to(fd, now_s)
        elif self._listener is not None and fd == self._listener.fileno():
            assert self.reception is not None
            if not self.reception.accept(self._listener, now_s):
                # asked again with the next heartbeat, not in a loop
                self.epoll.modify(fd, 0)
        elif self.reception is not None and fd in self.reception:
            self.reception.advance(fd)
        elif fd == self._waker and events:
            os.eventfd_read(self._waker)

    def _listen_to(self, fd: int, now_s: float) -> None:
        peer, stream = self._pulses[fd]
        try:
            for _, payload in stream.read(now_s, self._silence_s):
                if len(payload) != _PROGRESS.size:
                    raise ProtocolError(f"it sent a heartbeat of {len(payload)} bytes")
                peer.heard(_PROGRESS.unpack(payload)[0], now_s)
        except EOFError:
            # an orderly end is told by the control lane; without that, silence follows
            self._let_go(fd)
        except ProtocolError as error:
            self._let_go(fd)
            peer.lose(str(error))
        except OSError as error:
            self._let_go(fd)
            peer.lose(error.strerror or str(error))

    def _beat(self) -> None:
        payload = _PROGRESS.pack(self._progress())
        for peer, stream in list(self._pulses.values()):
            if stream.go_on():
                stream.put([Outgoing(Kind.PULSE, self._generation(), payload)])
            if peer.reason:
                self._let_go(stream.sock.fileno())

    def _judge(self, now_s: float, *, was_away: bool) -> None:
        for peer in list(self._peers):
            if peer.reason:
                self._peers.discard(peer)
            elif was_away:
                peer.heard_s = now_s
            elif now_s - peer.heard_s > self._silence_s:
                peer.lose(f"nothing was heard of it for {self._silence_s:g} s")
            elif peer.ended_s is not None and now_s - peer.ended_s > self._silence_s:
                # somebody on the way has ended one connection of a peer that lives (under TLS a reset looks like that, too)
                peer.lose(ENDED)
        if self.reception is not None and self._listener is not None:
            self.reception.sweep(now_s)
            self.epoll.modify(self._listener.fileno(), select.EPOLLIN)

    def _let_go(self, fd: int) -> None:
        peer, stream = self._pulses.pop(fd)
        self.epoll.unregister(fd)
        peer.close(stream.sock)

    def _close(self) -> None:
        for fd in list(self._pulses):
            self._let_go(fd)
        if self.reception is not None:
            self.reception.close()
        if self._listener is not None:
            self._listener.close()
        os.close(self._waker)
        self.epoll.close()

    def abandon(self) -> None:
        """Close the descriptors of a forked child's copy."""
        if self.reception is not None:
            self.reception.abandon()
        if self._listener is not None:
            self._listener.close()
        os.close(self._waker)
        self.epoll.close()
