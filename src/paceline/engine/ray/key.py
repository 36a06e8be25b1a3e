"""The job's key of a run whose processes are started one by one: handed over as a memory file, under no name and in no argument."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from paceline.transport import memory
from paceline.transport.keys import new_key, read_key_file

VARIABLE = "PACELINE_KEY_FILE"
_DESCRIPTORS = "/proc/self/fd/"


class Handed(NamedTuple):
    """What a child gets: a descriptor, and an environment that names it."""

    fd: int
    environ: Mapping[str, str]


def key_of_run(environ: Mapping[str, str]) -> bytes:
    """The text of the user's key file, or of a new key for this run alone. Raises ConfigError."""
    path = environ.get(VARIABLE)
    if not path:
        return new_key().encode()
    read_key_file(Path(path))
    return Path(path).read_bytes()


@contextmanager
def handed(key: bytes, environ: Mapping[str, str]) -> Generator[Handed]:
    """While a child starts, the key in a file that nobody else can open."""
    fd = memory.create_from("key", key)
    try:
        os.fchmod(fd, 0o600)
        yield Handed(fd, {**environ, VARIABLE: f"{_DESCRIPTORS}{fd}"})
    finally:
        os.close(fd)


def received(environ: Mapping[str, str]) -> bytes:
    """The key that this process was handed."""
    return Path(environ[VARIABLE]).read_bytes()


def let_go(environ: MutableMapping[str, str]) -> None:
    """Keep the key from whatever this process runs or starts: it is read already."""
    path = environ.pop(VARIABLE, "")
    if path.startswith(_DESCRIPTORS):
        os.close(int(path.removeprefix(_DESCRIPTORS)))
