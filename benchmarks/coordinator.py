"""How many steps a second the coordinator orders: its role alone, without network, servers or gradients.

A step is one Ready handled: judged, accepted, folded when due, its worker started again, samples leased, the event
made. Seconds are of processor time. `python benchmarks/coordinator.py [--json FILE]` prints a table; the target is 100,000 for each.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path

from paceline.hybrid import Hybrid, parse_mode, start_of
from paceline.messages import (
    Address,
    Attached,
    Begin,
    Drawn,
    Enter,
    Hello,
    LeaseRequest,
    ModelSpec,
    Ready,
    Seeded,
    ServerHello,
    Serving,
    Start,
    TensorSpec,
)
from paceline.roles.coordinator import Coordinator
from paceline.roles.effects import Effect, JobSettings, Send

TARGET = 100_000
NUM_SERVERS = 2
CHUNK = 50
"""Steps between two looks at the clock: what was decided is dropped after them, as an engine would have sent it."""
MODEL = ModelSpec((TensorSpec("w", (1024,), "float32", 0),), (), "torch.optim.SGD", b"", b"", True, True)


def begun(pace: str, num_workers: int, num_batches: int) -> tuple[Coordinator, dict[int, Start]]:
    """A coordinator whose workers have all been let start on their first batch, and what they were told."""
    mode = parse_mode(pace)
    hybrid = mode if isinstance(mode, Hybrid) else None
    coordinator = Coordinator(JobSettings(num_workers, NUM_SERVERS, start_of(mode), hybrid=hybrid))
    servers = [Address("server", shard) for shard in range(NUM_SERVERS)]
    workers = [Address("worker", number) for number in range(num_workers)]
    for server in servers:
        coordinator.handle(server, ServerHello(server.id, 0, "host"), 0.0)
    for worker in workers:
        coordinator.handle(worker, Hello(worker.id, 0, 0, "host", MODEL), 0.0)
    coordinator.handle(workers[0], Seeded(False), 0.0)
    for server in servers:
        coordinator.handle(server, Serving(), 0.0)
    for worker in workers:
        coordinator.handle(worker, Attached(), 0.0)
    coordinator.handle(workers[0], Enter(0), 0.0)
    coordinator.handle(workers[0], Drawn(0, (32,) * num_batches, (), num_batches // num_workers), 0.0)
    for worker in workers[1:]:
        coordinator.handle(worker, Enter(0), 0.0)
    for worker in workers:
        coordinator.handle(worker, LeaseRequest(0, wait=True), 0.0)
    effects: list[Effect] = []
    for worker in workers:
        effects += coordinator.handle(worker, Begin(0), 0.0)
    return coordinator, started(effects)


def started(effects: list[Effect]) -> dict[int, Start]:
    """Who may go on."""
    return {effect.to.id: effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Start)}


def measure(pace: str, num_workers: int, num_steps: int) -> float:
    """Steps a second over `num_steps`; what workers do between two steps is not timed."""
    coordinator, starts = begun(pace, num_workers, num_steps + 8 * num_workers)
    held = {number: list(coordinator.epochs.leases.ledger.held.get(number, ())) for number in range(num_workers)}  # pyright: ignore[reportOptionalMemberAccess]
    current = {number: coordinator.job.members.workers[number].started[0] for number in range(num_workers)}
    handle, spent_s, done, now_s = coordinator.handle, 0.0, 0, 0.0
    while done < num_steps:
        arrivals = [(Address("worker", number), ready_of(start, current[number])) for number, start in list(starts.items())[:CHUNK]]
        effects: list[Effect] = []
        begin_s = time.process_time()
        for address, ready in arrivals:
            now_s += 1e-5
            effects += handle(address, ready, now_s)
        spent_s += time.process_time() - begin_s
        done += len(arrivals)
        for address, _ in arrivals:
            del starts[address.id]
        for number, start in started(effects).items():
            starts[number] = start
            held[number] += start.leased
            current[number] = held[number].pop(0)
    return done / spent_s


def ready_of(start: Start, position: int) -> Ready:
    """The push of a step that was let start."""
    return Ready(start.step, 0, start.step % 2, (start.at_least,) * NUM_SERVERS, (position,), 32, 1.0, compute_s=0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rows = [
        {"pace": pace, "workers": workers, "steps_per_s": statistics.median(repeated(pace, workers, arguments.steps, arguments.repeats))}
        for pace in ("sync", "async", "ssp:3", "hybrid")
        for workers in (8, 1000)
    ]
    print(f"{'pace':8} {'workers':>8} {'steps/s':>10}   target {TARGET:,}")
    for row in rows:
        verdict = "reached" if row["steps_per_s"] >= TARGET else "MISSED"
        print(f"{row['pace']:8} {row['workers']:>8} {row['steps_per_s']:>10,.0f}   {verdict}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"target": TARGET, "servers": NUM_SERVERS, "rows": rows}, indent=1))


def repeated(pace: str, num_workers: int, num_steps: int, repeats: int) -> list[float]:
    """The rates of some runs, the collector's rest before each."""
    rates: list[float] = []
    for _ in range(repeats):
        gc.collect()
        rates.append(measure(pace, num_workers, num_steps))
    return rates


if __name__ == "__main__":
    main()
