"""One thread at a time: the engine lets a worker's thread play until it waits, and goes on itself.

What a process has one of (random streams, the script's modules, the default dtype) is each actor's own: it is
changed when another actor enters. The engine itself leaves all of that alone.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from paceline.errors import DeadlineError

_FRESH_SEED = 67280421310721
"""What torch seeds itself with in a new process."""
_NUMPY_SEEDS = 2**32
LOOK_S = 1.0


class Scene:
    """What belongs to one actor: the modules of the script's folder, and the state of what the process has one of."""

    def __init__(self, folder: Path, main: ModuleType, seed: int) -> None:
        self._folder = str(folder)
        self._modules: dict[str, ModuleType] = {"__main__": main}
        self._num_loaded = 0
        self._seed = seed
        self._streams: tuple[torch.Tensor, object, object] | None = None
        self._dtype = torch.float32

    def enter(self) -> None:
        """Put this actor's own in place; at first everything is as in a new process."""
        sys.modules.update(self._modules)
        self._num_loaded = len(sys.modules)
        torch.set_default_dtype(self._dtype)
        if self._streams is None:
            torch.manual_seed(_FRESH_SEED)
            np.random.seed(self._seed % _NUMPY_SEEDS)
            random.seed(self._seed)
        else:
            torch.set_rng_state(self._streams[0])
            np.random.set_state(self._streams[1])  # type: ignore[arg-type]
            random.setstate(self._streams[2])  # type: ignore[arg-type]

    def leave(self) -> None:
        """Take this actor's own along."""
        if len(sys.modules) != self._num_loaded:
            self._modules |= {name: module for name, module in sys.modules.items() if self._is_own(name, module)}
        for name in self._modules:
            sys.modules.pop(name, None)
        self._dtype = torch.get_default_dtype()
        self._streams = torch.get_rng_state(), np.random.get_state(), random.getstate()

    def _is_own(self, name: str, module: ModuleType) -> bool:
        """A source file under the script's folder, unless it is installed there; paceline is everybody's."""
        file = getattr(module, "__file__", None) or ""
        is_here = file.startswith(self._folder) and file.endswith(".py") and "site-packages" not in file
        return is_here and name.split(".", maxsplit=1)[0] != "paceline"


class House(Scene):
    """The engine's own: what was there before, and is put back at the end."""

    def __init__(self) -> None:
        super().__init__(Path("/"), sys.modules["__main__"], 0)
        self.leave()

    def _is_own(self, name: str, module: ModuleType) -> bool:  # noqa: ARG002 - as in Scene
        return name == "__main__"


class Actor:
    """A thread that plays only when it is let."""

    def __init__(self, stage: Stage, scene: Scene, name: str) -> None:
        self.stage, self.scene, self.name = stage, scene, name
        self.turn = threading.Lock()
        self.turn.acquire()

    def hand_back(self) -> None:
        """Called by the actor's own thread: let the engine go on until it is this actor's turn again."""
        self.stage.engines_turn.release()
        self.turn.acquire()


class Stage:
    """`playing` is the actor whose turn it is. A turn of more than `patience_s` of real time is taken for a script that hangs.

    `is_over` is asked during long turns: whether nobody wants to know any more.
    """

    def __init__(self, patience_s: float, is_over: Callable[[], bool]) -> None:
        self.engines_turn = threading.Lock()
        self.engines_turn.acquire()
        self.playing: Actor | None = None
        self._patience_s, self._is_over = patience_s, is_over
        self._house = House()
        self._scene: Scene = self._house
        self._house.enter()

    def play(self, actor: Actor) -> None:
        """Called by the engine: let `actor` play until it waits or is done. Raises DeadlineError when it does neither."""
        self._change_to(actor.scene)
        self.playing = actor
        actor.turn.release()
        waited_s = 0.0
        while not self.engines_turn.acquire(timeout=LOOK_S):
            waited_s += LOOK_S
            if waited_s >= self._patience_s or self._is_over():
                without = "a call into Paceline; a virtual worker that hangs cannot be ended"
                raise DeadlineError(f"{actor.name} has run for {waited_s:g} s without {without}")
        self.playing = None

    def close(self) -> None:
        """Put back what was there before."""
        self._change_to(self._house)

    def _change_to(self, scene: Scene) -> None:
        if scene is not self._scene:
            self._scene.leave()
            self._scene = scene
            scene.enter()
