"""A server whose workers may be elsewhere: what an update has made streams to those that pull it, window by window behind the apply.

Their Params comes last and is the role's to send, so what has arrived before it is not read.
"""

from __future__ import annotations

from functools import partial

from paceline.engine.local.serving import ServerProcess
from paceline.engine.remote.server_port import ServerPort
from paceline.messages import Address, Serve
from paceline.tensors.shard import Shard


class RemoteServer(ServerProcess):
    """The loop around the role, with a port that sends tensors."""

    def __init__(self, port: ServerPort, me: Address, device: str = "cpu") -> None:
        super().__init__(port, me, device)
        self._tensors = port

    def _build(self, serve: Serve, attachments: tuple[object, ...]) -> Shard:
        shard = super()._build(serve, attachments)
        shard.on_window = partial(self._stream, shard)
        return shard

    def _stream(self, shard: Shard, done: int) -> None:
        """`done` bytes of the shard are of the version that is being made."""
        for sender, pull in self._tensors.pulls():
            self._role.park(sender, pull)
        for worker, incarnation, copy in self._role.answered_next():
            if self._tensors.begin_stream(Address("worker", worker)) and copy:
                shard.follow(worker, incarnation)
        self._tensors.go_on(done)
