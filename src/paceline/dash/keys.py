"""The command `keys new`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.errors import ExitCode


def keys_new(
    file: Annotated[Path, Parameter(help="Where to write it; no file is written over.")],
    /,
    *,
    days: Annotated[int, Parameter(help="How long the key is good for.")] = 365,
) -> int:
    """Write a new key file, for all hosts of a job. Whoever has it is a member, so only its owner may read it."""
    from paceline.transport.keys import write_key_file

    write_key_file(file, days=days)
    sys.stdout.write(f"{file} is the job's key for {days} days: copy it to every host and name it there in PACELINE_KEY_FILE\n")
    return ExitCode.OK
