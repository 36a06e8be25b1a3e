"""What a script must not do in a thread that pretends to be a process: caught where Python lets us, with a sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

from paceline.engine.virtual.player import Player
from paceline.errors import UsageError

NO_PROCESS = "the script starts a process ({}), which a virtual worker cannot: it would live in real time; use --engine local"


@contextmanager
def guarded(playing: Callable[[], Player | None]) -> Generator[None]:
    """Inside, sleeping lets virtual time pass, signal handlers are left out, and processes are refused, for players alone."""
    with ExitStack() as stack:

        def put(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, make(getattr(owner, name)))

        def sleeping(real: Callable[..., Any]) -> Callable[..., Any]:
            def sleep(seconds: float, /) -> None:
                player = playing()
                if player is None:
                    real(seconds)
                else:
                    player.sleep(max(0.0, float(seconds)))

            return sleep

        def handling(real: Callable[..., Any]) -> Callable[..., Any]:
            def handle(signalnum: int, handler: Any) -> Any:
                return real(signalnum, handler) if playing() is None else signal.getsignal(signalnum)

            return handle

        def refusing(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
            def make(real: Callable[..., Any]) -> Callable[..., Any]:
                def refuse(*arguments: Any, **named: Any) -> Any:
                    if playing() is not None:
                        raise UsageError(NO_PROCESS.format(name))
                    return real(*arguments, **named)

                return refuse

            return make

        put(time, "sleep", sleeping)
        put(signal, "signal", handling)
        put(subprocess.Popen, "__init__", refusing("subprocess"))
        put(os, "fork", refusing("os.fork"))
        yield
