"""Where the scripts of a run are played: one stage, one script, and a process that looks to each as if it were its own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.config import Resolved
from paceline.engine.link import Link, install_each
from paceline.engine.virtual.guards import guarded
from paceline.engine.virtual.prints import Prints
from paceline.engine.virtual.script import Script
from paceline.engine.virtual.stage import Actor, Stage
from paceline.messages import Failed

if TYPE_CHECKING:
    from paceline.engine.virtual.player import Player

TURN_S = 600.0
"""How long, in real time, a script may run between two calls into Paceline."""


class Theatre:
    """What all players of a run share; `cast` are those that live, `failures` the reports of those whose script failed.

    `is_over` is asked while a player plays for long: whether it is not to be waited for.
    """

    def __init__(self, resolved: Resolved, logs: Path, is_over: Callable[[], bool]) -> None:
        self.resolved = resolved
        self.stage = Stage(TURN_S, is_over)
        self.script = Script(resolved.settings.script, resolved.settings.args)
        self.cast: dict[Actor, Player] = {}
        self.failures: list[tuple[int, Failed]] = []
        self._logs = logs

    @property
    def playing(self) -> Player | None:
        """Whose turn it is; None: the engine's."""
        actor = self.stage.playing
        return None if actor is None else self.cast.get(actor)

    @contextmanager
    def open(self, show: Callable[[int, str], None]) -> Generator[None]:
        """Inside, players can play; afterwards all of them have ended. `show` is given each line with who printed it."""
        with (
            Prints(self._logs, self._number, show) as prints,
            guarded(self._sleep),
            self.script.in_place(),
            _one_thread(),
        ):
            install_each(self._link)
            try:
                yield
            finally:
                if self.stage.playing is None:  # else it hangs, and nobody else can play
                    for player in list(self.cast.values()):
                        player.stop()
                install_each(lambda: None)
                self.stage.close()
                for worker, failed in self.failures:
                    prints.note(worker, f"{failed.text}{failed.sentence}\n")

    def _number(self) -> int | None:
        player = self.playing
        return None if player is None else player.id

    def _link(self) -> Link | None:
        player = self.playing
        return None if player is None else player.link

    def _sleep(self) -> Callable[[float], None] | None:
        player = self.playing
        return None if player is None else player.sleep


@contextmanager
def _one_thread() -> Generator[None]:
    """Sums depend on how many threads share them, so it is always one."""
    kept = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(kept)
