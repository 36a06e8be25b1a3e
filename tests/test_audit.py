"""The audit of the tests sees what it is there for."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import audited
from launch import environment


def of_ours(text: str) -> FunctionType:
    """A function whose code claims to lie in the library."""
    space: dict[str, object] = {"pickle": pickle}
    exec(compile(text, str(Path(audited.OURS) / "paceline" / "planted.py"), "exec"), space)
    planted = space["planted"]
    assert isinstance(planted, FunctionType)
    return planted


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("def planted(): return pickle.loads(b'\\x80\\x04\\x8c\\x02os\\x8c\\x06getcwd\\x93.')", "pickle.find_class"),
        ("def planted(): return eval('1 + 1')", "exec by"),
        ("def planted(): exec('x = 1')", "exec by"),
    ],
    ids=["pickle", "eval", "exec"],
)
def test_what_the_library_must_not_do_is_seen(text: str, event: str) -> None:
    planted = of_ours(text)
    audited.seen.clear()
    planted()
    assert any(what.startswith(event) for what in audited.seen), audited.seen
    audited.seen.clear()


def test_a_bind_to_every_interface_is_seen_and_one_to_loopback_is_not() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
    assert audited.seen == []
    with socket.socket() as sock:
        sock.bind(("0.0.0.0", 0))
    assert audited.seen == ["socket.bind ('0.0.0.0', 0)"]
    audited.seen.clear()


def test_what_others_do_is_not_held_against_us() -> None:
    pickle.loads(pickle.dumps(Path("x")))
    exec("x = 1")
    assert audited.seen == []


PLANTED = """
import os, socket, sys
exec(compile("def planted(): eval('1 + 1')", os.path.join(sys.argv[1], "paceline", "planted.py"), "exec"))
planted()
with socket.socket() as sock:
    sock.bind(("0.0.0.0", 0))
exec("x = 1")
"""


def test_a_program_that_a_test_starts_is_watched_as_well() -> None:
    subprocess.run([sys.executable, "-P", "-c", PLANTED, audited.OURS], check=True, timeout=20.0, env=environment())
    told = audited.in_programs()
    assert [what.partition(" in ")[0] for what in told] == [
        f"exec by {audited.OURS}/paceline/planted.py",
        "socket.bind ('0.0.0.0', 0)",
    ]
