"""Scripts that a launcher has started, on pretended hosts or on real ones: their environment, their ends, what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch import SCRIPTS, environment, events, free_port
from netns import Host

SCRIPT = SCRIPTS / "launched.py"
TIMEOUT_S = 100.0
PORT_THERE = 29_500
"""A port of the store on a host of a test's own, where nothing else runs."""
SILENCE_S = 6.0
"""What tests of faults set: how long a peer may go without a heartbeat."""
PATIENCE_S = 30.0
"""On one host there is no heartbeat: who shares memory with what was stopped has patience with it."""
ENDS_WITHIN_S = SILENCE_S + 30.0
"""The deadline that is stated for what falls silent, and the time that a loaded machine may take to tell it."""


class Ranks:
    """Processes with the environment that launchers agree on, `on_each` of them on each host; without `hosts` these are pretended.

    `same_host`: those of one host share memory (`memory`) or do not (`tcp`); `hosts`: those of the first host do, as if the
    others were on another machine. `settings` are the run's, by their long names; `variables` are all that the
    launcher sets, by rank, and `own` what each rank has besides; `folders` are where they are started.
    """

    def __init__(
        self,
        out: Path,
        *arguments: str,
        size: int,
        on_each: int,
        hosts: Sequence[Host] = (),
        script: Path = SCRIPT,
        variables: Sequence[Mapping[str, str]] = (),
        own: Sequence[Mapping[str, str]] = (),
        folders: Sequence[Path] = (),
        same_host: str | None = None,
        **settings: str,
    ) -> None:
        self.out, self._hosts, self._on_each, self._folders = out, hosts, on_each, folders
        self._command = [sys.executable, str(script), *arguments]
        given = {"pace": "sync", "route": "servers", "out": str(out), **settings}
        told = {f"PACELINE_{name.upper()}": value for name, value in given.items()}
        # the namespaces of one machine look like one host to the engine
        same_host = same_host or ("hosts" if hosts else "memory")
        address, port = (hosts[0].address, PORT_THERE) if hosts else ("127.0.0.1", free_port())
        shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
        agreed = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank % on_each)} for rank in range(size)]
        self._environments = [
            environment(
                **{**told, **of_rank, **(own[rank] if own else {})},
                TORCHELASTIC_ERROR_FILE=f"{out}-error-{rank}.json",
                PACELINE_SAME_HOST=("memory" if rank < on_each else "tcp") if same_host == "hosts" else same_host,
            )
            for rank, of_rank in enumerate(variables or agreed)
        ]
        self.processes: list[subprocess.Popen[Any]] = []
        for rank in range(size):
            self.processes.append(self._start(rank))

    def _start(self, rank: int) -> subprocess.Popen[Any]:
        with self._printed_at(rank).open("a") as output:
            options: dict[str, Any] = {"env": self._environments[rank], "stdout": output, "stderr": subprocess.STDOUT}
            options["cwd"] = self._folders[rank] if self._folders else None
            if self._hosts:
                return self._hosts[rank // self._on_each].popen(self._command, **options)
            return subprocess.Popen(self._command, **options)

    def restart(self, rank: int) -> None:
        """Start a rank again that has ended, as a launcher does that restarts single processes."""
        self.processes[rank].wait(TIMEOUT_S)
        self.processes[rank] = self._start(rank)

    def codes(self, timeout_s: float = TIMEOUT_S, *, of: Sequence[int] | None = None) -> list[int]:
        """The exit codes of all ranks, or of some, none later than the deadline."""
        end = time.monotonic() + timeout_s
        found: list[int] = []
        for rank in range(len(self.processes)) if of is None else of:
            try:
                found.append(self.processes[rank].wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                told = "\n".join(self.printed(each) for each in range(len(self.processes)))
                raise AssertionError(f"rank {rank} has not ended within {timeout_s:g} s\n{told}") from None
        return found

    def _printed_at(self, rank: int) -> Path:
        return self.out.parent / f"{self.out.name}-{rank}.txt"

    def printed(self, rank: int) -> str:
        """What a rank has printed so far."""
        return self._printed_at(rank).read_text()

    def wait_for_updates(self, count: int) -> None:
        """Until the run has made `count` updates."""
        end = time.monotonic() + TIMEOUT_S
        while sum(event["event"] == "update" for event in events(self.out)) < count:
            assert all(process.poll() is None for process in self.processes), self.printed(0)
            assert time.monotonic() < end
            time.sleep(0.05)

    def wait_for_word(self, rank: int, word: str) -> None:
        """Until a rank has printed it."""
        end = time.monotonic() + TIMEOUT_S
        while word not in self.printed(rank):
            assert time.monotonic() < end, self.printed(rank)
            time.sleep(0.05)

    def child(self, rank: int, part: str) -> int:
        """The process that a rank has started with `part` in its command line."""
        mine = self.processes[rank].pid
        for task in Path(f"/proc/{mine}/task").iterdir():
            for pid in (task / "children").read_text().split():
                if part in Path(f"/proc/{pid}/cmdline").read_text():
                    return int(pid)
        raise AssertionError(f"rank {rank} has started no {part}")

    def strike(self, fault: str, rank: int, part: str = "") -> None:
        """`kill` or `stop` a rank, or what it has started with `part` in its command line; or `cut` the cable of its host."""
        if fault == "cut":
            self._hosts[rank // self._on_each].cut()
        else:
            pid = self.child(rank, part) if part else self.processes[rank].pid
            os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    def check_end_without_server(self, fault: str) -> None:
        """Of two ranks on a host each, when server 1 was struck on its own: both end and name whom they have lost."""
        assert self.codes(ENDS_WITHIN_S) == [4, 4], self.printed(0)
        assert "server 1 was lost" in self.printed(0)
        theirs = self.printed(1)
        assert "server 1" in theirs if fault != "cut" else "coordinator" in theirs or "server 0" in theirs, theirs
        self._check_end()

    def check_end_without_coordinator(self, fault: str) -> None:
        """The same of the coordinator, on the first host, which has PATIENCE_S with it."""
        assert self.codes(ENDS_WITHIN_S, of=[1]) == [4], self.printed(1)
        assert self.codes(PATIENCE_S + ENDS_WITHIN_S, of=[0]) == [4], self.printed(0)
        for rank in range(2):
            told = self.printed(rank)
            # of a cable that is cut each side names whom it has lost of the other one
            assert "coordinator" in told or (fault == "cut" and ("server 1 was lost" in told or "server 0" in told)), told
        self._check_end()

    def _check_end(self) -> None:
        assert not any("Traceback" in self.printed(rank) for rank in range(len(self.processes)))
        assert self.left() == []

    def left(self) -> list[int]:
        """The processes of this run that live, other than the ranks that have not been waited for."""
        mark, found = f"PACELINE_OUT={self.out}\0".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                is_marked = mark in path.read_bytes()
            except OSError:
                continue
            if is_marked and int(path.parent.name) not in [process.pid for process in self.processes]:
                found.append(int(path.parent.name))
        return found

    def close(self) -> None:
        """Kill what a failed test has left."""
        for process in self.processes:
            process.kill()
            process.wait()
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def torchrun_on(hosts: Sequence[Host], script: Path, *arguments: str, on_each: int, **variables: str) -> list[int]:
    """torchrun itself on hosts of network namespaces, to its end; its exit codes. Those of the first host share memory."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts)), "--nproc-per-node", str(on_each)]
    command += ["--master-addr", hosts[0].address, "--master-port", str(PORT_THERE)]
    nodes = [
        host.popen(
            [*command, "--node-rank", str(node), str(script), *arguments],
            env=environment(**variables, PACELINE_SAME_HOST="tcp" if node else "memory"),
        )
        for node, host in enumerate(hosts)
    ]
    try:
        return [node.wait(TIMEOUT_S) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
