"""The Ray cluster of a run: found or begun, asked for room, and its actors called. The only module that knows Ray's own errors.

Only bytes, texts, numbers and dictionaries of these go through a call; Ray packs and unpacks them by its own means.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Collection, Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from paceline.engine.ray.berth import Berth
from paceline.errors import ConfigError
from paceline.transport.trust import is_loopback

ANSWER_S = 5.0
START_S = 60.0
"""How long a cluster of the run's own may take to start."""
LOOPBACK = "127.0.0.1"
OBJECT_STORE_BYTES = 80_000_000
"""About the least that Ray takes; no tensor goes through its store."""
INSTALL = "pip install 'paceline[ray]'"


class Answer(NamedTuple):
    """What came of a call: what the actor returned, or None and why there is nothing; `for_good`: the actor does not come back."""

    value: dict[str, Any] | None
    reason: str = ""
    for_good: bool = False


def check_installed() -> None:
    """Raise ConfigError when Ray is not here."""
    if find_spec("ray") is None:
        raise ConfigError(f"--engine ray needs the package ray, which is not installed: {INSTALL}")


def find_address(wanted: str | None) -> str | None:
    """Where the cluster is as HOST:PORT, None for one that is to be begun. Raises ConfigError when what is wanted is not there."""
    if wanted == "local":
        return None
    if wanted not in (None, "auto"):
        _check_answers(wanted, "--address")
        return wanted
    told = os.environ.get("RAY_ADDRESS", "").strip()
    if told:
        _check_answers(told, "RAY_ADDRESS")
        return told
    left = _left_by_ray_start()
    if left is None or (wanted is None and _silence_of(left)):
        if wanted == "auto":
            raise ConfigError("--address auto: no Ray cluster runs here: RAY_ADDRESS is not set, and `ray start` has left no address")
        return None
    _check_answers(left, "--address auto")
    return left


def _left_by_ray_start() -> str | None:
    try:
        return Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir()), "ray", "ray_current_cluster").read_text().strip() or None
    except OSError:
        return None


def _silence_of(address: str) -> str:
    """What is wrong with an address, empty when somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    except ValueError:
        return "it must be HOST:PORT"
    return ""


def _check_answers(address: str, place: str) -> None:
    wrong = _silence_of(address)
    if wrong:
        raise ConfigError(f"{place}: no Ray cluster answers at {address}: {wrong}")


class Cluster:
    """Room in a Ray cluster; `address` None begins one of this machine alone, with `num_cpus` that are only counted."""

    def __init__(self, address: str | None, num_cpus: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_raylet_start_wait_time_s", f"{START_S:g}")
        if address is None or is_loopback(address.rpartition(":")[0]):
            # else Ray takes an address of the network in place of loopback
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        self._folder = tempfile.mkdtemp(prefix="paceline-ray-") if address is None else None
        import ray
        from ray import exceptions

        self._ray, self._errors = ray, exceptions
        self._group: Any = None
        given: dict[str, Any] = {"address": address}
        if address is None:
            given = {
                "address": "local",
                "num_cpus": num_cpus,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_node_ip_address": LOOPBACK,
                "_temp_dir": self._folder,
            }
        try:
            ray.init(log_to_driver=False, **given)
        except Exception as error:  # Ray raises plain ones, too
            self.close()
            where = "Ray could not be started here" if address is None else f"the Ray cluster at {address} could not be joined"
            raise ConfigError(f"{where}: {first_line(error)}") from error
        self.host = str(ray.util.get_node_ip_address())

    # --- room ---------------------------------------------------------------------------------------------

    def reserve(self, num_places: int) -> None:
        """Ask for so many places of one CPU each, all or none, near each other where that is possible."""
        from ray.util.placement_group import placement_group

        self._group = placement_group([{"CPU": 1}] * num_places, strategy="PACK")

    def is_reserved(self, timeout_s: float) -> bool:
        """Whether there is room for all that was asked for."""
        return bool(self._group.wait(timeout_s))

    def room(self) -> str:
        """What the cluster has, in words."""
        whole, free = self._ray.cluster_resources().get("CPU", 0), self._ray.available_resources().get("CPU", 0)
        return f"it has {whole:g} CPUs on {len([one for one in self._ray.nodes() if one['Alive']])} nodes, {free:g} of them free"

    def berth(self, place: int | None, *, restarts: bool) -> Any:
        """An actor in a reserved place, or wherever there is room once; Ray starts it again when its node is lost, if `restarts`."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where: dict[str, Any] = {}
        if place is not None:
            where["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place)
        return self._ray.remote(Berth).options(num_cpus=1, max_restarts=-1 if restarts else 0, **where).remote()

    # --- calls --------------------------------------------------------------------------------------------

    def call(self, berth: Any, method: str, *arguments: object) -> Any:
        """Begin a call; its answer comes out of `answers`."""
        return getattr(berth, method).remote(*arguments)

    def answers(self, calls: Collection[Any], timeout_s: float) -> list[tuple[Any, Answer]]:
        """Those calls that are over, waiting so long for the first of them."""
        waiting = list(calls)
        first, _ = self._ray.wait(waiting, timeout=timeout_s)
        if not first:
            return []
        done, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return [(call, self._answer(call)) for call in done]

    def _answer(self, call: Any) -> Answer:
        try:
            return Answer(self._ray.get(call))
        except self._errors.ActorUnavailableError as error:
            return Answer(None, first_line(error))
        except self._errors.RayError as error:
            return Answer(None, first_line(error), for_good=True)

    def end(self, berths: Iterable[Any]) -> None:
        """End actors at once, for good."""
        for berth in berths:
            with suppress(self._errors.RayError, ValueError):
                self._ray.kill(berth)

    def close(self) -> None:
        """Leave the cluster; what the run had there goes with it, and a cluster that was begun here ends."""
        if self._group is not None:
            from ray.util.placement_group import remove_placement_group

            with suppress(self._errors.RayError, ValueError):
                remove_placement_group(self._group)
        self._ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def first_line(error: Exception) -> str:
    """The first line of what Ray says that is no heading of a trace."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("File ", "Traceback", "ray::", "^"))]
    return said[0].rstrip(".") if said else type(error).__name__
