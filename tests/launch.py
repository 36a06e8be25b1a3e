"""Starting `paceline run` and other programs from tests: hard timeouts, one thread each, output kept."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parent.parent


def environment(**extra: str) -> dict[str, str]:
    """The environment of a test's program: no settings of the caller's, one thread."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return {**kept, "OMP_NUM_THREADS": "1", **extra}


def run_command(script: Path | str, *arguments: str, out: Path, **options: object) -> list[str]:
    """`paceline run` as a command; options by their long names (workers=2, pace="async"). Tests are in lockstep unless they say."""
    command = [sys.executable, "-m", "paceline", "run", "--out", str(out)]
    given = {"pace": "sync", **json.loads(os.environ.get("PARITY_OPTIONS", "{}")), **options}
    for name, value in given.items():
        command += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    return [*command, str(script), *arguments]


def paceline_run(
    script: Path | str, *arguments: str, out: Path, timeout_s: float = 90.0, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run to the end, whatever its exit code."""
    command = run_command(script, *arguments, out=out, **options)
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment(), check=False)


def paceline_start(script: Path | str, *arguments: str, out: Path, **options: object) -> subprocess.Popen[str]:
    """Start it; the caller waits and kills."""
    command = run_command(script, *arguments, out=out, **options)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())


def events(out: Path) -> list[dict[str, object]]:
    """The whole lines of events.jsonl so far."""
    path = out / "events.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def routes(out: Path) -> list[tuple[object, object]]:
    """The routes in their order, with the group's workers where there is one."""
    return [(event["route"], event.get("workers")) for event in events(out) if event["event"] == "route"]


def wait_for_updates(out: Path, count: int, process: subprocess.Popen[str], timeout_s: float = 60.0) -> None:
    """Until the run has made `count` updates."""
    end = time.monotonic() + timeout_s
    while sum(event["event"] == "update" for event in events(out)) < count:
        if process.poll() is not None:
            output = process.stdout.read() if process.stdout else ""
            raise AssertionError(f"the run ended with {process.returncode} before update {count}: {output}")
        if time.monotonic() > end:
            raise AssertionError(f"no {count} updates within {timeout_s} s")
        time.sleep(0.02)


def paceline_without(
    killed: int,
    script: Path | str,
    *arguments: str,
    out: Path,
    updates: int,
    before: Callable[[], object] = lambda: None,
    **options: object,
) -> None:
    """Run to a good end, though a worker is killed once there are so many updates and `before` has looked at that."""
    process = paceline_start(script, *arguments, out=out, **options)
    try:
        wait_for_updates(out, updates, process)
        before()
        os.kill(pid_of(out, killed), signal.SIGKILL)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, printed


def pid_of(out: Path, worker: int) -> int:
    """The process of a worker that has joined."""
    joins = (event for event in events(out) if event["event"] == "join" and event["role"] == "worker")
    return int(str(next(event["pid"] for event in joins if event["id"] == worker)))


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def free_neighbours(count: int = 2) -> int:
    """The first of so many ports in a row that are free now, and that the kernel gives to nobody by itself."""
    while True:
        first = 10_000 + secrets.randbelow(10_000)
        with ExitStack() as stack, suppress(OSError):
            for number in range(count):
                stack.enter_context(socket.create_server(("127.0.0.1", first + number)))
            return first


def run_ranks(script: Path, *arguments: str, num_ranks: int, timeout_s: float = 120.0) -> None:
    """A torch.distributed program on `num_ranks` processes."""
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=environment(RANK=str(rank), WORLD_SIZE=str(num_ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
        )
        for rank in range(num_ranks)
    ]
    try:
        assert [process.wait(timeout_s) for process in ranks] == [0] * num_ranks
    finally:
        for process in ranks:
            process.kill()
