"""What a process of a test must not do, seen through Python's audit events: nothing of ours unpickles, evaluates, or binds where
nobody asked.

The hook only notes what it sees, because an exception raised in it would be swallowed wherever errors are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

OURS = str(Path(__file__).parent.parent.parent / "src")
SEEN_FILE = "AUDIT_SEEN"
"""The environment variable that names the file in which programs started by tests note what they have seen."""
# addresses of the tests' own hosts, made of network namespaces
ALLOWED = ("127.0.0.0/8", "::1/128", "10.77.0.0/16", "fd77::/16")

_hooked: list[bool] = []


def _caller(depth: int) -> str:
    """The file whose code caused the event."""
    try:
        return sys._getframe(depth).f_code.co_filename
    except ValueError:
        return ""


def is_expected(address: object) -> bool:
    """Whether a socket may be bound there: a Unix socket, or an address of this machine's own."""
    if not isinstance(address, tuple):
        return True
    import ipaddress

    try:
        host = ipaddress.ip_address(address[0])
    except ValueError:
        return address[0] == "localhost"
    return any(host in ipaddress.ip_network(net) for net in ALLOWED if ipaddress.ip_network(net).version == host.version)


def watch(note: Callable[[str], None]) -> None:
    """Begin to watch this process and note what is forbidden; there is no way to end it."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "exec":
            # an import is also an exec, called by importlib; a compile alone is what a traceback makes of its lines
            if _caller(2).startswith(OURS):
                note(f"{event} by {_caller(2)}")
        elif event == "pickle.find_class":
            # the unpickler has frames of its own when it is the one in Python
            if any(_caller(depth).startswith(OURS) for depth in range(2, 8)):
                note(f"{event} {arguments}")
        elif event == "socket.bind" and not is_expected(arguments[1]):
            note(f"{event} {arguments[1]}")

    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(hook)


def note_in_file(what: str) -> None:
    """Note what a program that a test has started has seen, in the file that the tests look into."""
    fd = os.open(os.environ[SEEN_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{what} in {sys.argv if hasattr(sys, 'argv') else 'a child'}\n".encode())
    os.close(fd)
