"""What a script must not do in a thread that pretends to be a process: caught where Python lets us, with a sentence."""

from __future__ import annotations

import _posixsubprocess
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from typing import Any
from weakref import WeakSet

from torch.utils.data import DataLoader

from paceline.errors import UsageError

Sleep = Callable[[float], None]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def guarded(playing: Callable[[], Sleep | None]) -> Generator[None]:
    """Inside, a script's sleep lets virtual time pass, its signal handlers are left out, its loaders fetch in its own thread, and
    processes are refused.

    `playing` gives the sleep of the worker whose script plays, None while none does: then all is as ever.
    """
    wraps: list[tuple[Any, str, Wrap]] = [
        (time, "sleep", lambda real: _sleeping(real, playing)),
        (signal, "signal", lambda real: _handling(real, playing)),
        (subprocess.Popen, "__init__", lambda real: _refusing(real, playing, "subprocess")),
        (_posixsubprocess, "fork_exec", lambda real: _refusing(real, playing, "a spawned one")),  # as multiprocessing spawns
        *((os, name, partial(_refusing, playing=playing, what=f"os.{name}")) for name in ("fork", "system", "posix_spawn")),
        (DataLoader, "__iter__", lambda real: _fetching(real, playing)),
    ]
    with ExitStack() as stack:
        for owner, name, wrap in wraps:
            real = getattr(owner, name)
            stack.callback(setattr, owner, name, real)
            setattr(owner, name, wrap(real))
        yield


def _sleeping(real: Callable[..., Any], playing: Callable[[], Sleep | None]) -> Callable[..., Any]:
    def sleep(seconds: float, /) -> None:
        virtual = playing()
        if virtual is None:
            real(seconds)
        else:
            virtual(max(0.0, float(seconds)))

    return sleep


def _handling(real: Callable[..., Any], playing: Callable[[], Sleep | None]) -> Callable[..., Any]:
    def handle(signalnum: int, handler: Any) -> Any:
        return real(signalnum, handler) if playing() is None else signal.getsignal(signalnum)

    return handle


def _fetching(real: Callable[..., Any], playing: Callable[[], Sleep | None]) -> Callable[..., Any]:
    told = WeakSet[DataLoader[Any]]()

    def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
        if playing() is None or not loader.num_workers:
            return real(loader)
        if loader not in told:
            told.add(loader)
            print(f"paceline: a loader's {loader.num_workers} processes are not started here: it fetches in the worker's own thread")
        alone = copy(loader)
        alone.num_workers, alone.timeout = 0, 0
        return real(alone)

    return iterate


def _refusing(real: Callable[..., Any], playing: Callable[[], Sleep | None], what: str) -> Callable[..., Any]:
    def refuse(*arguments: Any, **named: Any) -> Any:
        if playing() is not None:
            raise UsageError(
                f"the script starts a process ({what}), which a virtual worker cannot: it would live in real time; use --engine local"
            )
        return real(*arguments, **named)

    return refuse
