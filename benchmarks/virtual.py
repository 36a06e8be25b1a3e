"""How fast virtual time goes without gradients: jobs of 10 to 10,000 counting workers with one server and with eight.

The time of an event is to be flat within a factor of two from 10 to 10,000 workers; with 1,000 workers a second of processor
time is to make 10,000 steps with one server and 4,000 with eight. With `--mnist` it also plays 64 virtual workers of
examples/mnist.py with their gradients for an epoch, which are to fit in 6 GiB. `python benchmarks/virtual.py [--json FILE]`.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from paceline.engine.virtual.cluster import Cluster, Group, Seconds
from paceline.engine.virtual.cluster_file import Loaded
from paceline.engine.virtual.timing import simulate
from paceline.engine.virtual.trainee import workload
from paceline.pace import parse_pace
from paceline.roles.effects import JobSettings

UNEVEN = Loaded(Cluster(workers=(Group(compute=Seconds(1e-3), factor="lognormal", spread=0.3),)), {}, {})
MODEL_BYTES, BATCH = 4_000_000, 32
LEAST_STEPS = 20_000
FEW_STEPS = 4
"""Of each worker, where the job is large."""
TARGETS = {(1000, 1): 10_000, (1000, 8): 4_000}
FLAT = 2.0
MOST_BYTES = 6 * 2**30
ROOT = Path(__file__).parent.parent
RESIDENT = (
    "import resource, sys; from paceline.cli import main; main(sys.argv[1:]); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
)


def measure(pace: str, num_workers: int, num_servers: int) -> dict[str, Any]:
    """One job: its steps and events, and what they took of the processor."""
    work = workload(MODEL_BYTES, max(LEAST_STEPS, FEW_STEPS * num_workers), batch=BATCH, num_workers=num_workers)
    settings = JobSettings(num_workers, num_servers, parse_pace(pace), patience_s=3600.0)
    gc.collect()
    begun_s = time.process_time()
    outcome = simulate(settings, UNEVEN, work)
    spent_s = time.process_time() - begun_s
    per_worker = cast("dict[str, dict[str, float]]", outcome.summary["per_worker"])
    steps = sum(one["steps"] for one in per_worker.values())
    row = {"pace": pace, "workers": num_workers, "servers": num_servers, "steps": steps, "events": outcome.num_events}
    return row | {"steps_per_s": steps / spent_s, "event_us": 1e6 * spent_s / outcome.num_events}


def table(rows: list[dict[str, Any]]) -> None:
    """Each job with what is promised of it."""
    print(f"{'pace':8} {'workers':>8} {'servers':>8} {'steps/s':>10} {'us/event':>9}")
    for row in rows:
        few = next(one for one in rows if (one["pace"], one["servers"]) == (row["pace"], row["servers"]))
        times = row["event_us"] / few["event_us"]
        told = [f"{times:.2f} times the event of {few['workers']}" + ("" if times <= FLAT else f", MISSED: at most {FLAT:g}")]
        target = TARGETS.get((row["workers"], row["servers"]))
        if target is not None:
            told.append(f"target {target:,}: {'reached' if row['steps_per_s'] >= target else 'MISSED'}")
        place = f"{row['pace']:8} {row['workers']:>8,} {row['servers']:>8}"
        print(f"{place} {row['steps_per_s']:>10,.0f} {row['event_us']:>9.2f}   {'; '.join(told)}")


def resident_bytes() -> int:
    """The most that a process with 64 workers of the MNIST example has had in memory; Linux counts in KiB."""
    with TemporaryDirectory() as folder:
        told = ["run", "--engine", "virtual", "--workers", "64", "--pace", "async", "--out", f"{folder}/run"]
        command = [sys.executable, "-c", RESIDENT, *told, str(ROOT / "examples" / "mnist.py"), "--epochs", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    return 1024 * int(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--paces", nargs="+", default=["sync", "async", "ssp:3"])
    parser.add_argument("--mnist", action="store_true", help="also play 64 workers with gradients and measure the memory")
    arguments = parser.parse_args()
    rows = [
        measure(pace, num_workers, num_servers) for pace in arguments.paces for num_servers in (1, 8) for num_workers in arguments.workers
    ]
    table(rows)
    figures: dict[str, Any] = {"flat": FLAT, "rows": rows}
    if arguments.mnist:
        figures["mnist_bytes"] = size = resident_bytes()
        verdict = "reached" if size < MOST_BYTES else "MISSED"
        print(f"64 workers of examples/mnist.py: {size / 2**30:.2f} GiB, target {MOST_BYTES / 2**30:g}: {verdict}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
