"""Runs of the local engine that are watched from outside: started, hit, and afterwards looked for in /proc."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

from launch import environment, run_command

WITHIN_S = 10.0


class Watched:
    """A run of `paceline run` with a mark in the environment of everything that it starts."""

    def __init__(self, out: Path, script: Path, *arguments: str, **options: object) -> None:
        self.out = out
        self._mark = f"PACELINE_JOB_MARK={token_hex(8)}"
        name, value = self._mark.split("=")
        self._output = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115  lives as long as the process that writes it
        self.process = subprocess.Popen(
            run_command(script, *arguments, out=out, **{"workers": 2, "servers": 1, **options}),
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment(**{name: value}),
        )

    def pids(self, part: str = "") -> list[int]:
        """Everything of this run that lives, with `part` in its command line."""
        found: list[int] = []
        for folder in Path("/proc").iterdir():
            try:
                marked = folder.name.isdigit() and self._mark.encode() in (folder / "environ").read_bytes()
                alive = marked and (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                if alive and part in (folder / "cmdline").read_text().replace("\0", " "):
                    found.append(int(folder.name))
            except OSError:
                continue
        return sorted(found)

    def child(self, part: str) -> int:
        """The one process with `part` in its command line, once it is there."""
        self.wait_for(lambda: len(self.pids(part)) == 1)
        return self.pids(part)[0]

    def kill(self, part: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to one process of the run."""
        os.kill(self.child(part), number)

    def wait_for(self, what: Callable[[], bool], timeout_s: float = 40.0) -> None:
        """Until `what` holds; fails when the run ends before."""
        end = time.monotonic() + timeout_s
        while not what():
            assert self.process.poll() is None, self.printed()
            assert time.monotonic() < end, self.printed()
            time.sleep(0.02)

    def wait_until_printed(self, text: str) -> None:
        """Until the console shows `text`."""
        self.wait_for(lambda: text in self.printed())

    def printed(self) -> str:
        """The console so far."""
        return Path(self._output.name).read_text()

    def code(self, timeout_s: float = 40.0) -> int:
        """The exit code, once it has ended by itself; nothing of it may be left."""
        code = self.process.wait(timeout_s)
        assert self.pids() == []
        return code

    def code_soon(self) -> int:
        """The exit code, which must come within ten seconds."""
        return self.code(WITHIN_S)

    def summary(self) -> dict[str, object]:
        """The run's summary."""
        return json.loads((self.out / "summary.json").read_text())

    def close(self) -> None:
        """Kill what a failed test has left."""
        self.process.kill()
        self.process.wait()
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self._output.close()
