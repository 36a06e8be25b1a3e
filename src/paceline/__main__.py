"""The `paceline` command; also `python -m paceline`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command. A Ctrl-C while its modules are imported ends it at once: inside an import it would be a traceback, or lost."""
    obeys = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if obeys:
        signal.signal(signal.SIGINT, _leave)
    import paceline.cli

    if obeys:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return paceline.cli.main()


def _leave(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
