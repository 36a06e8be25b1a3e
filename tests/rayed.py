"""A Ray cluster of several raylets on this machine, on loopback alone, and what processes of runs are left in it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from secrets import token_hex
from typing import Any

STORE_BYTES = 80_000_000
# dead raylets are found within seconds, and none is taken for dead on a busy machine
HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_raylet_start_wait_time_s": "90",
}


class Raylets:
    """One raylet with `num_cpus` at first; CPUs are only counted. Whatever runs in it has a mark in its environment."""

    def __init__(self, num_cpus: int) -> None:
        self._mark = f"PACELINE_JOB_MARK={token_hex(8)}"
        name, value = self._mark.split("=")
        os.environ.update({**VARIABLES, name: value})
        from ray.cluster_utils import Cluster

        self._folder = tempfile.mkdtemp(prefix="rt-")
        self._added: list[Any] = []
        head = {"num_cpus": num_cpus, "include_dashboard": False, "temp_dir": self._folder, "_system_config": HEALTH}
        self._cluster = Cluster(initialize_head=True, head_node_args={**head, **self._of_each()})

    @staticmethod
    def _of_each() -> dict[str, Any]:
        return {"node_ip_address": "127.0.0.1", "object_store_memory": STORE_BYTES}

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def first(self) -> Any:
        """The raylet that was there at first, to which commands on this machine connect as long as it is the only one."""
        return self._cluster.head_node

    def add(self, num_cpus: int) -> Any:
        """Another raylet."""
        node = self._cluster.add_node(num_cpus=num_cpus, **self._of_each())
        self._added.append(node)
        return node

    @staticmethod
    def pid_of(node: Any) -> int:
        """The process of a raylet."""
        return int(node.all_processes["raylet"][0].process.pid)

    def kill(self, node: Any) -> None:
        """End a raylet as a machine ends that loses power."""
        self._added.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def shrink(self) -> None:
        """Back to the first raylet."""
        for node in list(self._added):
            self.kill(node)

    def pids(self, *parts: str) -> list[int]:
        """Processes in the cluster with one of `parts` in their command lines."""
        found: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = self._mark.encode() in (folder / "environ").read_bytes()
                line = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if marked and any(part in line for part in parts):
                found.append(int(folder.name))
        return found

    def raylet_of(self, pid: int) -> int:
        """The raylet above a process."""
        while pid > 1:
            status = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
            pid = int(status[1])
            if "raylet/raylet" in (Path("/proc") / str(pid) / "cmdline").read_text():
                return pid
        raise AssertionError("no raylet is above it")

    def is_clean(self, within_s: float = 10.0) -> bool:
        """Whether no process of a run is left, nor any of its actors."""
        end = time.monotonic() + within_s
        while self.pids("paceline.engine", "ray::Berth") and time.monotonic() < end:
            time.sleep(0.1)
        return not self.pids("paceline.engine", "ray::Berth")

    def close(self) -> None:
        self._cluster.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in (*VARIABLES, self._mark.split("=")[0]):
            os.environ.pop(name, None)
