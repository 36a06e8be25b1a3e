"""Virtual runs for tests: a script or a workload, a cluster, and what came of it, all in this process."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from paceline.engine.virtual import run
from paceline.engine.virtual.cluster import Cluster, check_cluster
from paceline.engine.virtual.cluster_file import Loaded
from paceline.engine.virtual.timing import Outcome, simulate
from paceline.engine.virtual.trainee import Workload
from paceline.pace import parse_pace
from paceline.roles.effects import JobSettings

TRAIN = """
import torch, paceline
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
run = paceline.init()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(96, 4))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs({epochs}):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        loss.backward()
        {before_step}
        optimizer.step()
        run.log(loss=loss)
{after}
"""


def script(*, epochs: int = 2, before_step: str = "pass", after: str = "") -> str:
    """TRAIN with some of its parts replaced."""
    return TRAIN.format(epochs=epochs, before_step=before_step, after=after)


class Played(NamedTuple):
    """A run that is over."""

    code: int
    out: Path

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.out / "summary.json").read_text())

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "events.jsonl").read_text().splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def log(self, worker: int) -> str:
        return (self.out / "logs" / f"worker-{worker}.log").read_text()


def play(
    folder: Path,
    text: str,
    cluster: str = "",
    *,
    gradients: bool = True,
    write_report: Callable[[Path], Path] | None = None,
    **settings: object,
) -> Played:
    """Run a script given as text on a cluster given as TOML; settings as on the command line."""
    folder.mkdir(parents=True, exist_ok=True)
    path, file = folder / "train.py", folder / "cluster.toml"
    path.write_text(text)
    file.write_text(cluster)
    given = {"workers": 3, "servers": 1, "pace": "sync", **settings}
    return Played(*run(path, out=folder / "run", cluster=str(file), gradients=gradients, write_report=write_report, **given))


def cluster_of(text: str) -> Loaded:
    """The same without a file; times are plain seconds."""
    cluster = msgspec.convert(tomllib.loads(text), Cluster, dec_hook=lambda kind, value: kind(value))
    check_cluster(cluster)
    return Loaded(cluster, {}, {})


IDEAL = """
[network]
bandwidth = inf
latency = 0.0
"""


def timed(
    pace: str,
    work: Workload,
    cluster: str,
    *,
    num_workers: int,
    num_servers: int = 1,
    seed: int = 0,
    watch: Callable[[dict[str, object], float], None] | None = None,
) -> Outcome:
    """A workload on a cluster given as TOML, without gradients."""
    settings = JobSettings(num_workers, num_servers, parse_pace(pace), patience_s=3600.0)
    return simulate(settings, cluster_of(cluster), work, seed=seed, watch=watch)
