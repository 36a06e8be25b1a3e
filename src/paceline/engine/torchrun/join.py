"""`paceline.init()` under a launcher: the processes of the run are started, found and connected, and this one is a worker of it.

Rank 0 decides the settings, makes the run directory and starts the coordinator; the first worker of each host starts a server.
All that is written down for the others is read by them in the same order, rank 0 included.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from paceline.config import DEFAULT, Resolved, resolve
from paceline.engine.link import Link, Member, install
from paceline.engine.local.child import Brief
from paceline.engine.local.run_dir import prepare_run_dir
from paceline.engine.remote.joint import Joint
from paceline.engine.remote.worker_port import WorkerPort
from paceline.engine.surroundings import Surroundings
from paceline.engine.torchrun.board import Board, understood
from paceline.engine.torchrun.companions import Companion, check_alike, here
from paceline.engine.torchrun.ending import Ending, plainly
from paceline.engine.torchrun.entrance import entrance_of
from paceline.engine.torchrun.launch import Launch, find_launch
from paceline.engine.torchrun.nursery import Nursery
from paceline.engine.torchrun.place import Place, host_of, machine, name_here, reach_all, shares_memory, silence_of, trust_at
from paceline.errors import ConfigError, PacelineError
from paceline.messages import COORDINATOR, Address
from paceline.roles.patience import LEAST_WAIT_S
from paceline.transport.shm import SocketPort
from paceline.transport.tcp import TcpPort
from paceline.transport.trust import Trust
from paceline.transport.wire import Wire

COMPANION, SETTINGS, PLACE = "companion", "settings", "at"
TELL_S = 5.0
"""How long a process that cannot come looks for the store, to tell the others why."""


def launched(environ: Mapping[str, str], wishes: Mapping[str, object], write_report: Callable[[Path], Path]) -> Link | None:
    """The link of a run that a launcher has started, None without one. PACELINE_ENGINE or `init(engine=...)` rules it out, or in.

    What keeps the run from beginning is raised, and told in one sentence if the script lets it through.
    """
    chosen = wishes.get("engine") or environ.get("PACELINE_ENGINE")
    if chosen not in (None, "torchrun"):
        return None
    try:
        launch = find_launch(environ)
        if launch is None and chosen is not None:
            raise ConfigError("engine torchrun needs a launcher that sets RANK and WORLD_SIZE (torchrun, srun, mpirun), and none has")
        return None if launch is None else joined(launch, wishes, write_report)
    except PacelineError:
        sys.excepthook = plainly(sys.excepthook)
        raise


def joined(launch: Launch, wishes: Mapping[str, object], write_report: Callable[[Path], Path]) -> Link:
    """The link of this process; what keeps it from the run is told to the others, who wait for it."""
    try:
        place = host_of(launch, os.environ)
        trust = trust_at(place, os.environ)
    except PacelineError as error:
        with suppress(ConfigError):
            Board(launch, None, open_s=TELL_S).tell_trouble(str(error))
        raise
    board = Board(launch, trust)
    try:
        return Joining(launch, wishes, write_report, board, (place, trust)).join()
    except PacelineError as error:
        board.tell_trouble(str(error))
        raise


class Launched(Surroundings):
    """A worker that a launcher has started. The board lives as long: where rank 0 keeps the store, others read it later than rank 0."""

    engine = "torchrun"

    def __init__(self, launch: Launch, board: Board, host: str) -> None:
        self.because = launch.because
        self.board = board
        self.address = host


class Joining:
    """The way of one process into the run of its launch."""

    def __init__(
        self, launch: Launch, wishes: Mapping[str, object], write_report: Callable[[Path], Path], board: Board, at: tuple[str, Trust]
    ) -> None:
        self._launch, self._wishes, self._write_report, self._board = launch, wishes, write_report, board
        self._host, self._trust = at
        self._silence_s, self._entrance = silence_of(os.environ), entrance_of(os.environ)

    def join(self) -> Link:
        """Become a worker, whose link is this process's own from now on. Raises what keeps the run from beginning."""
        launch, board = self._launch, self._board
        life = board.count(f"life/{launch.rank}")
        board.write(f"{COMPANION}/{launch.rank}", msgspec.json.encode(here(launch)))
        notes = [board.read(f"{COMPANION}/{rank}", f"rank {rank}") for rank in range(launch.world_size)]
        companions = [understood(note, Companion, rank) for rank, note in enumerate(notes)]
        check_alike(companions)
        firsts = [companion.rank for companion in companions if companion.local_rank == 0]
        if launch.rank == 0:
            self._decide(len(firsts))
        resolved = self._decided()
        patience_s = max(resolved.settings.patience_s, LEAST_WAIT_S)
        nursery = Nursery(Path(resolved.settings.out), patience_s)
        if launch.rank == 0:
            self._start(nursery, COORDINATOR, resolved, None)
        coordinator = self._where(COORDINATOR, 0)
        if launch.rank in firsts:
            self._start(nursery, Address("server", firsts.index(launch.rank)), resolved, coordinator)
        servers = {Address("server", shard): self._where(Address("server", shard), rank) for shard, rank in enumerate(firsts)}
        port = self._connect({COORDINATOR: coordinator, **servers}, life)
        worker_port = WorkerPort(port, timeout_s=patience_s)
        link = Link(worker_port, Member(launch.rank, life, launch.world_size, len(firsts)), resolved, Launched(launch, board, self._host))
        link.on_written = worker_port.written
        nursery.watch()
        Ending(link, worker_port, nursery, self._write_report).watch()
        install(link)
        return link

    # --- what is decided once -----------------------------------------------------------------------------

    def _decide(self, num_hosts: int) -> None:
        resolved = settings_of(self._launch, self._wishes, num_hosts, os.environ)
        prepare_run_dir(Path(resolved.settings.out), resolved)
        resolved, about_route = routed(resolved, self._trust.wire, shares=shares_memory(os.environ))
        for sentence in (f"run directory: {resolved.settings.out}", *resolved.warnings(), *about_route):
            sys.stderr.write(f"paceline: {sentence}\n")
        self._board.write(SETTINGS, msgspec.json.encode(resolved))

    def _decided(self) -> Resolved:
        return msgspec.json.decode(self._board.read(SETTINGS, "rank 0"), type=Resolved)

    # --- who is where -------------------------------------------------------------------------------------

    def _start(self, nursery: Nursery, who: Address, resolved: Resolved, coordinator: Place | None) -> None:
        near = name_here(coordinator, os.environ) if coordinator is not None else ""
        endpoint = coordinator.endpoint if coordinator is not None else None
        blank = Brief("", who.role, who.id, 0, 0, -1, -1, resolved, self._host, endpoint, near, port=self._entrance.port_of(who))
        host, port = self._entrance.reached_at(who, nursery.start(nursery.brief(blank)))
        place = Place(host, port, nursery.name_of(who) if shares_memory(os.environ) else "", machine())
        self._board.write(f"{PLACE}/{who.role}/{who.id}", msgspec.json.encode(place))

    def _where(self, who: Address, rank: int) -> Place:
        note = self._board.read(f"{PLACE}/{who.role}/{who.id}", f"rank {rank}, which starts {who},")
        return msgspec.json.decode(note, type=Place)

    def _connect(self, places: Mapping[Address, Place], life: int) -> Joint:
        """Reach everyone: those of this machine so that memory is shared, the others over TCP."""
        me = Address("worker", self._launch.rank)
        near, far = SocketPort(me), TcpPort(me, self._trust, incarnation=life, silence_s=self._silence_s)
        members = {peer: (place.endpoint, name_here(place, os.environ)) for peer, place in places.items()}
        port, reason = reach_all(near, far, members)
        if reason:
            sys.stderr.write(f"paceline: no memory is shared with a process of this machine, it is reached over TCP: {reason}\n")
        return port


def routed(resolved: Resolved, wire: Wire, *, shares: bool) -> tuple[Resolved, list[str]]:
    """The settings with a route where none is to be measured, and why: where all processes share memory, or connections are protected."""
    if resolved.settings.route != "auto":
        return resolved, []
    if wire is not Wire.PLAIN:
        why = "a collective's connections cannot be protected as this run's are"
    elif shares:
        # without protection everyone is on this machine
        why = "all processes share this machine's memory"
    else:
        return resolved, []
    settings = msgspec.structs.replace(resolved.settings, route="servers")
    return Resolved(settings, {**resolved.origins, "route": why}), [f"route servers: {why}"]


def settings_of(launch: Launch, wishes: Mapping[str, object], num_hosts: int, environ: Mapping[str, str]) -> Resolved:
    """The run's settings: the launcher says how many workers there are, and each host has one server. Raises ConfigError."""
    resolved = resolve(
        cores=launch.world_size,
        stamp=datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        init=wishes,
        environ=environ,
        script=sys.argv[0],
        args=sys.argv[1:],
    )
    settings, origins = resolved.settings, resolved.origins
    for name, size, why in (("workers", launch.world_size, "processes"), ("servers", num_hosts, "hosts, one server each")):
        if origins[name] != DEFAULT and getattr(settings, name) != size:
            raise ConfigError(
                f"{origins[name]}: {name} {getattr(settings, name)} is not allowed, {launch.launcher} has started {size} {why}"
            )
    # a group that was started again begins anew, and a directory holds one run
    out = f"{settings.out}-restart{launch.restarts}" if launch.restarts and origins["out"] != DEFAULT else settings.out
    settings = msgspec.structs.replace(settings, workers=launch.world_size, servers=num_hosts, engine="torchrun", out=out)
    return Resolved(settings, {**origins, "workers": launch.because, "engine": launch.because})
