"""Watches a test's process through Python's audit events: nothing of ours unpickles, evaluates, or binds where nobody asked.

The hook only notes what it sees, because an exception raised in it would be swallowed wherever errors are; the fixture
`nothing_forbidden` fails the test.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

OURS = str(Path(__file__).parent.parent / "src")
# addresses of the tests' own hosts, made of network namespaces
ALLOWED = ("127.0.0.0/8", "::1/128", "10.77.0.0/16")

seen: list[str] = []
_hooked: list[bool] = []


def _caller(depth: int = 2) -> str:
    """The file whose code caused the event."""
    try:
        return sys._getframe(depth).f_code.co_filename
    except ValueError:
        return ""


def is_expected(address: object) -> bool:
    """Whether a socket may be bound there: a Unix socket, or an address of this machine's own."""
    if not isinstance(address, tuple):
        return True
    try:
        host = ipaddress.ip_address(address[0])
    except ValueError:
        return address[0] == "localhost"
    return any(host in ipaddress.ip_network(net) for net in ALLOWED if ipaddress.ip_network(net).version == host.version)


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event == "pickle.find_class":
        # the unpickler has frames of its own when it is the one in Python
        if any(_caller(depth).startswith(OURS) for depth in range(2, 8)):
            seen.append(f"{event} {arguments}")
    elif event in ("exec", "compile"):
        # an import is also an exec, called by importlib
        if _caller().startswith(OURS):
            seen.append(f"{event} by {_caller()}")
    elif event == "socket.bind" and not is_expected(arguments[1]):
        seen.append(f"{event} {arguments[1]}")


def watch() -> None:
    """Begin to watch this process; there is no way to end it."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hook)


@pytest.fixture(autouse=True)
def nothing_forbidden() -> Iterator[None]:
    """Fail a test in which something forbidden happened, in whatever thread."""
    watch()
    seen.clear()
    yield
    assert not seen, f"forbidden: {seen}"
