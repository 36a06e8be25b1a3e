"""What a script does, as far as time goes: it is run once, by one worker, with a few batches an epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import msgspec

from paceline.config import Resolved
from paceline.engine.local.coordinator_main import job_settings
from paceline.engine.local.serving import shard_of
from paceline.engine.virtual.cluster import EVEN, crew_of
from paceline.engine.virtual.compute import Rhythm, stream
from paceline.engine.virtual.job import Job
from paceline.engine.virtual.luggage import MemoryFiles
from paceline.engine.virtual.network import Network
from paceline.engine.virtual.player import Player
from paceline.engine.virtual.theatre import Theatre
from paceline.engine.virtual.timeline import Timeline
from paceline.engine.virtual.timing import Watching
from paceline.engine.virtual.trainee import Workload
from paceline.errors import ConfigError, ExitCode
from paceline.messages import Address, Drawn, Enter, Hello, Message, Ready
from paceline.pace import parse_pace
from paceline.roles.effects import End

MOST_BATCHES = 4
"""Of an epoch: enough to see whether a step has several."""


class Probe(Player):
    """A worker that is watched: its first batch list is noted, and every list is cut to its beginning.

    Once a step is seen of a script that has said how many epochs it plans, everything is known.
    """

    first: Drawn | None = None
    hello: Hello | None = None
    num_epochs = planned = 0
    batches_per_step = 1

    def send(self, to: Address, message: Message, attachments: Sequence[int]) -> None:
        """Note what tells of the script."""
        match message:
            case Hello():
                self.hello = message
            case Enter(ledger=False):
                raise ConfigError("timing without gradients needs a prepared map-style loader; this script's samples are not counted")
            case Drawn():
                self.first = self.first or message
                self.num_epochs += 1
                message = _beginning(message)
            case Enter(planned=planned):
                self.planned = planned
            case Ready(positions=positions):
                self.batches_per_step = len(positions)
                if self.planned:
                    self.num_epochs = self.planned
                    self.job.end = End(ExitCode.OK, "")
            case _:
                pass
        super().send(to, message, attachments)


def _beginning(drawn: Drawn) -> Drawn:
    """The list as if the epoch had only a few batches, all of them the lone worker's."""
    if drawn.cut:
        return msgspec.structs.replace(drawn, sizes=(min(drawn.cut, *drawn.sizes),), updates=1)
    return msgspec.structs.replace(drawn, sizes=drawn.sizes[:MOST_BATCHES], owners=(), updates=ceil(len(drawn.sizes[:MOST_BATCHES])))


def probe(resolved: Resolved, theatre: Theatre, show: Callable[[int, str], None]) -> Workload | End:
    """Run the script, as worker 0 of as many as there are to be; returns its workload, or how it failed.

    Raises ConfigError when its workload cannot be told.
    """
    settings = job_settings(resolved)._replace(pace=parse_pace("sync"), pace_is_open=False, hybrid=None)
    timeline, crew = Timeline(), crew_of(EVEN, settings.num_workers)
    network = Network(timeline, EVEN, crew, settings.num_servers)
    job = Job(settings, timeline, network, build=shard_of, books=Watching(None), luggage=MemoryFiles())
    with theatre.open(show):
        rhythm = Rhythm(crew[0], 0, stream(0), {})
        worker = Probe(job, 0, 0, rhythm, theatre=theatre, is_cut_short=False)
        for other in range(1, settings.num_workers):
            job.absent(other)
        job.join(worker)
        end = job.run()
    if end.code:
        return end
    if worker.batches_per_step != 1:
        raise ConfigError(f"timing without gradients takes a step per batch; this script takes one every {worker.batches_per_step} batches")
    drawn = worker.first
    assert drawn is not None
    assert worker.hello is not None
    return Workload(worker.hello.model, drawn.sizes, worker.num_epochs, drawn.updates, drawn.owners, drawn.cut)
