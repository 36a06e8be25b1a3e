"""The threads that move tensors: one connection each, blocking, with the kernel's deadline on every call.

A tensor travels one way in a lane; the other way only TAKEN comes back, so the one thread of an end both reads and writes.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from abc import abstractmethod
from collections.abc import Callable
from threading import Thread

from paceline.errors import ProtocolError
from paceline.transport.arrivals import Arrivals
from paceline.transport.departures import Departures, Leaving
from paceline.transport.piece import Piece, pack_piece, unpack_piece
from paceline.transport.stream import STALLED, Line, bound
from paceline.transport.wire import HEADER_BYTES, MOST_BYTES, PIECE_BYTES, Frame, FrameReader, FrameWriter, Kind

_KEY = struct.Struct("<Q")
_TLS_BYTES = 1 << 20
ENDED = "its connection ended"
Ended = Callable[[socket.socket, str], None]
"""Hears, from the thread of a lane, that nothing touches its socket or any place any more, and why; closes the socket."""

_WAIT_ALL = getattr(socket, "MSG_WAITALL", 0)


class Carrier(Thread):
    """One end of one connection for tensors."""

    kinds: tuple[Kind, ...] = ()

    def __init__(self, line: Line, *, generation: Callable[[], int], stall_s: float, ended: Ended) -> None:
        super().__init__(name=f"paceline {type(self).__name__}", daemon=True)
        bound(line.sock, stall_s=stall_s)
        self.sock = line.sock
        self.generation = generation
        self._writer = FrameWriter(line.seals[0])
        self._reader = FrameReader(line.seals[1], self.kinds, line.session.peer.generation)
        self._is_tls = isinstance(line.sock, ssl.SSLSocket)
        self._stall_s = stall_s
        self._ended = ended

    def run(self) -> None:
        """Move tensors until the connection ends."""
        reason = "the thread that moves its tensors failed"
        try:
            self.move()
        except EOFError:
            reason = ENDED
        except STALLED:
            reason = f"a tensor did not move for {self._stall_s:g} s"
        except ProtocolError as error:
            reason = str(error)
        except OSError as error:
            reason = error.strerror or str(error)
        finally:
            self.release()
            self._ended(self.sock, reason)

    @abstractmethod
    def move(self) -> None:
        """Move tensors; ends only by an exception."""

    def release(self) -> None:
        """Let go of what the thread held besides its socket."""

    def _read(self, view: memoryview, *, begun: bool) -> None:
        """Fill `view`; only the first byte of a frame may be waited for without end."""
        done, flags = 0, 0 if self._is_tls else _WAIT_ALL
        while done < len(view):
            try:
                size = self.sock.recv_into(view[done:], 0, flags)
            except STALLED:
                if begun or done:
                    raise
                continue
            if size == 0:
                raise EOFError
            done += size

    def _write(self, head: bytes, data: memoryview) -> None:
        if self._is_tls:
            self.sock.sendall(head)
            for start in range(0, len(data), _TLS_BYTES):
                self.sock.sendall(data[start : start + _TLS_BYTES])
            return
        parts = [memoryview(head), data]
        while parts:
            sent = self.sock.sendmsg(parts)
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][sent:]


class Sender(Carrier):
    """Takes pieces from a peer's departures, and hears what has been taken."""

    kinds = (Kind.TAKEN,)

    def __init__(self, line: Line, departures: Departures, *, generation: Callable[[], int], stall_s: float, ended: Ended) -> None:
        super().__init__(line, generation=generation, stall_s=stall_s, ended=ended)
        self._departures = departures
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._answer = bytearray(HEADER_BYTES + _KEY.size)
        self._copy = bytearray()
        departures.attach(self._waker)

    def move(self) -> None:
        """Send whatever is released; between pieces, hear what the peer has."""
        poll = select.poll()
        poll.register(self.sock.fileno(), select.POLLIN)
        poll.register(self._waker, select.POLLIN)
        while True:
            leaving = self._departures.next_piece()
            if leaving is not None:
                self._send(leaving)
            for fd, _ in poll.poll(0 if leaving is not None else None):
                if fd == self._waker:
                    os.eventfd_read(self._waker)
                else:
                    self._hear()

    def _send(self, leaving: Leaving) -> None:
        data = self._settled(leaving.data) if leaving.may_change else leaving.data
        place = pack_piece(leaving.piece)
        head = self._writer.header(Kind.PLACE, self.generation(), place) + place
        self._write(head + self._writer.header(Kind.PIECE, self.generation(), data), data)

    def _settled(self, data: memoryview) -> memoryview:
        """A copy: what leaves must be what was sealed."""
        if len(self._copy) < len(data):
            self._copy = bytearray(PIECE_BYTES)
        copy = memoryview(self._copy)[: len(data)]
        copy[:] = data
        return copy

    def _hear(self) -> None:
        answer = memoryview(self._answer)
        self._read(answer, begun=True)
        frame = self._reader.header(answer[:HEADER_BYTES])
        self._reader.check(frame, answer[HEADER_BYTES:])
        self._departures.taken(_KEY.unpack(answer[HEADER_BYTES:])[0])

    def release(self) -> None:
        """Nobody wakes this thread any more."""
        self._departures.detach(self._waker)
        os.close(self._waker)


class Receiver(Carrier):
    """Receives pieces into the places that are expected, and says when a tensor is whole."""

    kinds = (Kind.PLACE, Kind.PIECE)

    def __init__(self, line: Line, arrivals: Arrivals, *, generation: Callable[[], int], stall_s: float, ended: Ended) -> None:
        super().__init__(line, generation=generation, stall_s=stall_s, ended=ended)
        self._arrivals = arrivals
        self._head = bytearray(HEADER_BYTES + MOST_BYTES[Kind.PLACE])

    def move(self) -> None:
        """Receive piece after piece."""
        head = memoryview(self._head)
        place, data_head = head[HEADER_BYTES:], head[:HEADER_BYTES]
        while True:
            self._read(head[:HEADER_BYTES], begun=False)
            frame = self._expect(Kind.PLACE, head[:HEADER_BYTES], MOST_BYTES[Kind.PLACE])
            self._read(place, begun=True)
            self._reader.check(frame, place)
            piece = unpack_piece(place)
            self._read(data_head, begun=True)
            span = piece.spec.piece(piece.number)
            frame = self._expect(Kind.PIECE, data_head, span.stop - span.start)
            self._place(piece, frame)

    def _place(self, piece: Piece, frame: Frame) -> None:
        """Receive the bytes of a piece into their place, and thank for the tensor when it is whole."""
        arrival, whole = self._arrivals.begin(piece), False
        try:
            data = arrival.place[piece.spec.piece(piece.number)]
            self._read(data, begun=True)
            self._reader.check(frame, data)
            whole = True
        finally:
            complete = self._arrivals.end(arrival, whole=whole)
        if complete:
            key = _KEY.pack(piece.key)
            self._write(self._writer.header(Kind.TAKEN, self.generation(), key) + key, memoryview(b""))
            self._arrivals.finish(arrival)

    def _expect(self, kind: Kind, head: memoryview, length: int) -> Frame:
        frame = self._reader.header(head)
        if frame.kind is not kind or frame.length != length:
            raise ProtocolError(f"it sent {frame.length} bytes as {frame.kind.name} where {length} bytes of {kind.name} belong")
        return frame
