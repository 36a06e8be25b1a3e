"""The process of a user's own policy: loads its file and answers what the coordinator asks, one question at a time. No torch.

Whatever the function does is an answer: an exception, nonsense and a pace that does not exist are said as such.
"""

from __future__ import annotations

import importlib.util
import io
import os
import reprlib
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec

from paceline.engine.local.child import die_with
from paceline.errors import ConfigError, PeerLostError
from paceline.logic.policies.policy import Move
from paceline.logic.signals import Signals
from paceline.messages import COORDINATOR, Address, Advice, Ask, Loaded
from paceline.pace import Pace, parse_pace
from paceline.transport.shm import SocketPort

MAX_LOG_BYTES = 1 << 30
MAX_TEXT, MAX_NAME = 2000, 200
_EVER_S = 3600.0

UserPolicy = Callable[[Signals, tuple[Move, ...]], object]


def load(file: str, function: str) -> UserPolicy:
    """The function `function` of the Python file `file`, which is run as a module. Raises whatever that raises."""
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return cast(UserPolicy, getattr(module, function))


def answer(policy: UserPolicy, ask: Ask, file: str) -> Advice:
    """What the policy says to a question, or what is wrong with it."""
    signals = msgspec.msgpack.decode(ask.signals, type=Signals)
    history = msgspec.msgpack.decode(ask.history, type=tuple[Move, ...])
    try:
        return _checked(ask.number, policy(signals, history))
    except BaseException as error:  # noqa: BLE001 - whatever the user's code lets through is its answer
        return Advice(ask.number, fault="raised", error=f"raised {told(error, file)}")


def _checked(number: int, said: object) -> Advice:
    match said:
        case (None | str() | Pace() as chosen, str() as why):
            pass
        case _:
            wanted = "it must be a pair of a Pace, its name or None to stay, and a sentence"
            return Advice(number, fault="nonsense", error=f"returned {plain(reprlib.repr(said))}, {wanted}")
    try:
        name = "" if chosen is None else _name_of(chosen)
    except ConfigError as error:
        return Advice(number, fault="pace", error=plain(f"chose a pace that cannot be: {error}"))
    return Advice(number, name, plain(why))


def _name_of(chosen: str | Pace) -> str:
    """The name by which a chosen pace travels. Raises ConfigError when it names none, or another one."""
    name = chosen if isinstance(chosen, str) else chosen.name
    if len(name) > MAX_NAME:
        raise ConfigError(f"its name {reprlib.repr(name)} has {len(name):,} characters, at most {MAX_NAME} are allowed")
    pace = parse_pace(name)
    if isinstance(chosen, Pace) and chosen != pace:
        raise ConfigError(f"the Pace differs from what its name {name!r} stands for, make it with parse_pace")
    return pace.name


def told(error: BaseException, file: str) -> str:
    """An exception in a few words, with the last line of the user's file that led to it."""
    what = type(error).__name__
    with suppress(Exception):  # a user's own exception may fail to tell of itself
        what += f": {error}" if str(error) else ""
    path = str(Path(file).resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{plain(what)} (line {lines[-1]})" if lines else plain(what)


def plain(text: str) -> str:
    r"""What a user's code says as one line that can be sent and shown, cut where it is too long.

    >>> plain("red \x1b[31m\nand \ud800")
    'red \\x1b[31m and \\ud800'
    """
    words = " ".join(text[: 2 * MAX_TEXT].split())[:MAX_TEXT]
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in words)


def serve(port: SocketPort, file: str, function: str) -> None:
    """Load the policy, say whether that went well, and answer until the coordinator has no more questions."""
    try:
        policy = load(file, function)
    except BaseException as error:  # noqa: BLE001 - as above
        port.send(COORDINATOR, Loaded(f"could not be loaded: {told(error, file)}"))
        return
    port.send(COORDINATOR, Loaded() if callable(policy) else Loaded(f"is no function but {reprlib.repr(policy)}"))
    while True:
        delivery = port.receive(_EVER_S)
        if delivery is None:
            continue
        if not isinstance(delivery.message, Ask):
            return
        port.send(COORDINATOR, answer(policy, delivery.message, file))


def main() -> int:
    """Run with FILE, FUNC, the descriptor of the socket to the coordinator and that one's process id."""
    file, function, descriptor, parent = sys.argv[1:]
    if not die_with(int(parent)):
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_LOG_BYTES, MAX_LOG_BYTES))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    os.set_inheritable(int(descriptor), False)
    port = SocketPort(Address("advisor"))
    port.adopt(COORDINATOR, socket.socket(fileno=int(descriptor)))
    sys.argv = [file]
    with suppress(PeerLostError):
        serve(port, file, function)
    port.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
