"""A worker with a script: its thread plays while virtual time stands still, and waits while it passes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.engine.link import Link
from paceline.engine.link import Member as Who
from paceline.engine.local.blame import failed_of
from paceline.engine.surroundings import Surroundings
from paceline.engine.virtual.compute import Rhythm
from paceline.engine.virtual.job import HOST, Job
from paceline.engine.virtual.member import Member
from paceline.engine.virtual.stage import Actor, Scene
from paceline.engine.virtual.theatre import Theatre
from paceline.errors import ExitCode, RunEnded
from paceline.messages import COORDINATOR, Address, Bye, Failed, Message
from paceline.ports import Delivery

if TYPE_CHECKING:
    from types import ModuleType

FAREWELL_S = 10.0
"""How long a thread may take to end once it is told to."""


class Killed(BaseException):
    """Raised in the thread of a worker that is dead: no script is to catch it."""


class Player(Member):
    """One incarnation of a worker: a thread, its link, and what the script sees of the world."""

    def __init__(self, job: Job, worker: int, incarnation: int, rhythm: Rhythm, *, theatre: Theatre, is_cut_short: bool) -> None:
        super().__init__(job, worker, incarnation, rhythm, is_cut_short=is_cut_short)
        settings = theatre.resolved.settings
        self._theatre, self._script = theatre, theatre.script
        self._main: ModuleType = theatre.script.module()
        scene = Scene(theatre.script.folder, self._main, settings.seed + worker)
        self.actor = Actor(theatre.stage, scene, f"worker {worker}")
        self.exits: list[Callable[[], None]] = []
        member = Who(worker, incarnation, settings.workers, settings.servers)
        has_times = settings.compute is not None
        self.link = Link(PlayersPort(self), member, theatre.resolved, PlayersSurroundings(self, has_times=has_times))
        self.failed: Failed | None = None
        self.inbox: deque[Delivery] = deque()
        self._is_receiving = False
        self._thread = threading.Thread(target=self._play, name=f"paceline-worker-{worker}", daemon=True)

    # --- called by the engine -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the script play until it waits for the first time."""
        self._theatre.cast[self.actor] = self
        self._thread.start()
        self._resume()

    def arrive(self, delivery: Delivery) -> None:
        """Something for the script's session."""
        self.inbox.append(delivery)
        if self._is_receiving:
            self._resume()

    def stop(self) -> None:
        """It is dead: its thread unwinds now."""
        was_alive = self.alive
        super().stop()
        if was_alive and self._thread.is_alive():
            self.actor.stage.play(self.actor)
            self._thread.join(FAREWELL_S)
        self._bury()

    def _resume(self) -> None:
        self.actor.stage.play(self.actor)
        if self.failed is not None:
            self.alive = False
            self._theatre.failures.append((self.id, self.failed))
            self.job.fail(self.failed)
        if not self.alive:
            self._bury()

    def _bury(self) -> None:
        self._theatre.cast.pop(self.actor, None)
        for delivery in self.inbox:
            self.job.drop(delivery.attachments)
        self.inbox.clear()

    # --- called by the script's thread --------------------------------------------------------------------

    def send(self, to: Address, message: Message, attachments: Sequence[int]) -> None:
        """The session sends something."""
        self.job.post(self, to, message, attachments)

    def wait_for_delivery(self) -> Delivery:
        """The next delivery. Nobody else's patience is needed: the coordinator's deadlines end every wait."""
        self.check_alive()
        if not self.inbox:
            self._is_receiving = True
            self.actor.hand_back()
            self._is_receiving = False
            self.check_alive()
        return self.inbox.popleft()

    def spend(self, samples: int) -> None:
        """Compute on so many samples."""
        self.check_alive()
        self.compute(samples, self._resume)
        self.actor.hand_back()
        self.check_alive()

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.check_alive()
        self.rest(seconds, self._resume)
        self.actor.hand_back()
        self.check_alive()

    def check_alive(self) -> None:
        """Raise Killed in a worker that is dead."""
        if not self.alive:
            raise Killed

    def _play(self) -> None:
        self.actor.turn.acquire()
        try:
            self._run()
        finally:
            self.actor.stage.engines_turn.release()

    def _run(self) -> None:
        """Run the script, and what it wants to be run at its end; tell how that went."""
        path = self._script.path
        try:
            self.check_alive()
            self._script.run(self._main)
            self._leave()
        except Killed:
            pass
        except RunEnded:
            self.alive = False
        except KeyboardInterrupt:
            self.failed = Failed(ExitCode.INTERRUPTED, f"{self.address}: {path} raised KeyboardInterrupt")
        except SystemExit as end:
            if end.code in (0, None):
                self._leave()
            else:
                self.failed = Failed(ExitCode.SCRIPT_FAILED, f"{self.address}: {path} ended with sys.exit({end.code!r})")
        except Exception as error:  # noqa: BLE001 - whatever the script lets through is reported
            self.failed = failed_of(error, self.address, path)

    def _leave(self) -> None:
        if not self.link.joined:
            sentence = f"{self.address}: {self._script.path} ended without calling run.prepare(...), so there was nothing to train"
            self.failed = Failed(ExitCode.SCRIPT_FAILED, sentence)
            return
        for call in reversed(self.exits):
            call()
        self.job.post(self, COORDINATOR, Bye())
        self.alive = False


class PlayersPort:
    """The `ports.Port` of a player's link."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def send(self, to: Address, message: Message, attachments: Sequence[int] = ()) -> None:
        """Hand over to the job; what the dead send (loops that are closed as they unwind) goes nowhere."""
        if self._player.alive:
            self._player.send(to, message, attachments)

    def receive(self, timeout_s: float) -> Delivery | None:  # noqa: ARG002 - the coordinator's deadlines end every wait
        """The next delivery, whenever it comes."""
        return self._player.wait_for_delivery()

    def close(self) -> None:
        """Nothing is open."""


class PlayersSurroundings(Surroundings):
    """Virtual time, a virtual host, no process. With `has_times` steps take what the settings say, nothing else."""

    engine = "virtual"
    because = "`paceline run --engine virtual` plays all workers in one process"
    may_fork = False
    may_use_devices = False  # whose random streams are not handed over, and whose kernels may add in any order

    def __init__(self, player: Player, *, has_times: bool) -> None:
        self._player = player
        self._has_times = has_times

    @property
    def pid(self) -> int:
        """None that the record could hold and that would be the same tomorrow."""
        return 0

    @property
    def host(self) -> str:
        """A machine of its own."""
        return f"{HOST}-{self._player.id}"

    def now_s(self) -> float:
        """Virtual time."""
        return self._player.job.timeline.now_s

    def cpu_s(self) -> float:
        """A virtual processor does nothing else."""
        return self._player.job.timeline.now_s

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._player.sleep(seconds)

    def spend(self, samples: int) -> None:
        """The step takes as long as the worker's group says."""
        self._player.spend(0 if self._has_times else samples)

    def at_exit(self, call: Callable[[], None]) -> None:
        """Call this when the script has ended well."""
        self._player.exits.append(call)
