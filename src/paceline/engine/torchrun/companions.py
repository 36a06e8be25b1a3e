"""What each process of a launch says of itself before there is a run, and whether all of them can work together."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec
import torch

import paceline
from paceline.engine.torchrun.launch import Launch
from paceline.errors import ConfigError


class Companion(msgspec.Struct, frozen=True):
    """A process: its rank, its place on its host, and the versions that it runs."""

    rank: int
    local_rank: int
    host: str
    paceline: str
    torch: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


def here(launch: Launch) -> Companion:
    """What this process says of itself."""
    return Companion(launch.rank, launch.local_rank, socket.gethostname(), paceline.__version__, str(torch.__version__))


def check_alike(companions: Sequence[Companion]) -> None:
    """Raise ConfigError, with the hosts, when not all run the same Paceline and the same torch; how torch was built may differ."""
    first = companions[0]
    for other in companions:
        for name, theirs, ours in (("Paceline", other.paceline, first.paceline), ("torch", other.torch, first.torch)):
            if theirs.partition("+")[0] != ours.partition("+")[0]:
                raise ConfigError(f"{other} has {name} {theirs}, and {first} has {ours}: install the same version on every host")
