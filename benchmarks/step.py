"""How fast a training step is beside DDP, by either route, and an exchange of 100 MB beside all-reduce, torch rpc and Ray.

Every contender runs in processes of its own, one after another, in alternating order, `--repeats` times; a figure is
the median over repeats of each run's median step. Prints a table and writes JSON. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
TIMEOUT_S = 240.0

FOUR = ", 4 ranks"

Rates = dict[str, float]

TARGETS = (
    ("sync step / DDP fused", "paceline 25m", "ddp fused 25m", 0.60),
    ("sync step / DDP fused, malloc tuned", "paceline 25m", "ddp fused+malloc 25m", 0.70),
    ("sync step / DDP default", "paceline 25m", "ddp default 25m", 0.45),
    ("1 M sync step / DDP fused", "paceline 1m", "ddp fused 1m", 0.70),
    ("collective sync step / DDP fused", "collective 25m", "ddp fused 25m", 1.05),
    ("collective sync step / DDP fused, 4 ranks", "collective 25m, 4 ranks", "ddp fused 25m, 4 ranks", 1.05),
    ("sync exchange / all-reduce + apply", "paceline sync exchange", "all-reduce exchange", 0.60),
    ("async exchange / torch rpc", "paceline async exchange", "rpc exchange", 0.30),
    ("async exchange / Ray actor", "paceline async exchange", "ray exchange", 0.60),
)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(**extra: str) -> dict[str, str]:
    """The contenders' environment: one thread, our modules on the path."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), **extra}


def run_ranks(script: str, arguments: list[str], num_ranks: int, extra: dict[str, str]) -> float:
    """Start `num_ranks` processes of a peer; the median milliseconds of rank 0's steps."""
    with tempfile.TemporaryDirectory() as folder:
        out, log, port = Path(folder) / "out.json", Path(folder) / "log", str(free_port())
        ranks = [
            subprocess.Popen(
                [sys.executable, str(HERE / "peers" / script), *arguments],
                env=environment(
                    RANK=str(rank), WORLD_SIZE=str(num_ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, BENCH_OUT=str(out), **extra
                ),
                stdout=subprocess.DEVNULL,
                stderr=log.open("a"),
            )
            for rank in range(num_ranks)
        ]
        try:
            for process in ranks:
                process.wait(TIMEOUT_S)
        finally:
            for process in ranks:
                process.kill()
        if any(process.returncode for process in ranks) or not out.exists():
            raise RuntimeError(f"{script} {' '.join(arguments)} failed: {log.read_text()[-2000:]}")
        return float(json.loads(out.read_text())["ms"])


def run_paceline(script: str, arguments: list[str], num_workers: int, pace: str, route: str = "servers", **extra: str) -> float:
    """The same under `paceline run`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", "paceline", "run", "--workers", str(num_workers), "--pace", pace, "--route", route]
        command += ["--out", str(Path(folder) / "run"), str(HERE / "peers" / script), *arguments]
        done = subprocess.run(
            command, env=environment(BENCH_OUT=str(out), **extra), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return float(json.loads(out.read_text())["ms"])


def run_launched(arguments: list[str], same_host: str) -> float:
    """The step as a launcher starts it: two processes of one machine that share memory, or speak over TCP as if they were on two."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"PACELINE_PACE": "sync", "PACELINE_OUT": str(Path(folder) / "run"), "PACELINE_SAME_HOST": same_host}
        return run_ranks("paceline_step.py", arguments, 2, {**MALLOC, **own})


def memory_rates() -> Rates:
    """What the machine's memory does now: the copy rate of two threads (GB/s); a norm, an SGD apply and a copy of 100 MB (ms).

    The arrays are as many as a step or an exchange works on and are taken in turn, so that no cache that happens to be
    large, or not shared with neighbours at the moment, stands in for the memory.
    """
    import torch

    numbers = 25_000_000
    arrays = [torch.ones(numbers) for _ in range(6)]

    def seconds(action: Callable[[], object]) -> float:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start

    torch.set_num_threads(2)
    copies = [seconds(lambda a=arrays[2 * at], b=arrays[2 * at + 1]: b.copy_(a)) for _ in range(4) for at in range(3)]
    torch.set_num_threads(1)
    gradient, parameters, private = arrays[:3]
    turns = [
        (
            seconds(gradient.norm),
            seconds(lambda: parameters.add_(gradient, alpha=-0.01)),
            seconds(lambda: private.copy_(parameters)),
        )
        for _ in range(9)
    ]
    norm_s, apply_s, copy_s = (median(column) for column in zip(*turns, strict=True))
    rate = numbers * 4e-9 / median(copies)
    return {"copy_2_threads_gb_s": rate, "copy_ms": 1e3 * copy_s, "norm_ms": 1e3 * norm_s, "apply_ms": 1e3 * apply_s}


def contenders(steps: int, *, ray: str | None) -> dict[str, Callable[[], float]]:
    """Name to run."""
    few = str(max(10, steps // 2))
    runs: dict[str, Callable[[], float]] = {}
    for size, num in (("25m", steps), ("1m", 10 * steps)):
        arguments = [size, str(num)]
        runs[f"paceline {size}"] = lambda a=arguments: run_paceline("paceline_step.py", a, 2, "sync")
        runs[f"ddp fused {size}"] = lambda a=arguments: run_ranks("ddp_step.py", [*a, "fused"], 2, {})
        runs[f"compute {size}"] = lambda a=arguments: run_ranks("compute_step.py", a, 2, MALLOC)
    step = ["25m", str(steps)]
    runs["collective 25m"] = lambda: run_paceline("paceline_step.py", step, 2, "sync", "collective")
    runs["collective at the step 25m"] = lambda: run_paceline("paceline_step.py", step, 2, "sync", "collective", PACELINE_OVERLAP="no")
    runs["collective 25m, 4 ranks"] = lambda: run_paceline("paceline_step.py", step, 4, "sync", "collective")
    runs["ddp fused 25m, 4 ranks"] = lambda: run_ranks("ddp_step.py", [*step, "fused"], 4, {})
    runs["launched 25m"] = lambda: run_launched(step, "memory")
    runs["launched over tcp 25m"] = lambda: run_launched(step, "tcp")
    runs["ddp fused+malloc 25m"] = lambda: run_ranks("ddp_step.py", [*step, "fused"], 2, MALLOC)
    runs["ddp default 25m"] = lambda: run_ranks("ddp_step.py", [*step, "default"], 2, {})
    runs["paceline sync exchange"] = lambda: run_paceline("paceline_exchange.py", [few], 2, "sync")
    runs["all-reduce exchange"] = lambda: run_ranks("allreduce_exchange.py", [few], 2, {})
    runs["paceline async exchange"] = lambda: run_paceline("paceline_exchange.py", [few], 1, "async")
    runs["rpc exchange"] = lambda: run_ranks("rpc_exchange.py", [few], 2, {})
    if ray:
        runs["ray exchange"] = lambda: run_ray(ray, few)
    return runs


def run_ray(python: str, steps: str) -> float:
    """The Ray peer runs with the interpreter that has Ray."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [python, str(HERE / "peers" / "ray_exchange.py"), steps]
        subprocess.run(command, env=environment(BENCH_OUT=str(out)), capture_output=True, timeout=TIMEOUT_S, check=True)
        return float(json.loads(out.read_text())["ms"])


def in_turns(runs: dict[str, Callable[[], float]], results: dict[str, list[float]], repeat: int, repeats: int) -> None:
    """Every contender once, forwards and backwards in turn."""
    for name in list(runs) if repeat % 2 == 0 else list(runs)[::-1]:
        results.setdefault(name, []).append(runs[name]())
        print(f"{repeat + 1}/{repeats} {name}: {results[name][-1]:.2f} ms", file=sys.stderr, flush=True)


def measure_each(runs: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Every contender `repeats` times."""
    results: dict[str, list[float]] = {}
    for repeat in range(repeats):
        in_turns(runs, results, repeat, repeats)
    return results


def measure(runs: dict[str, Callable[[], float]], repeats: int) -> tuple[dict[str, list[float]], list[Rates]]:
    """Every contender `repeats` times, and the machine's own rates before each turn and after."""
    results: dict[str, list[float]] = {}
    rates: list[Rates] = []
    for repeat in range(repeats):
        before = memory_rates()
        in_turns(runs, results, repeat, repeats)
        after = memory_rates()
        rates.append({key: (before[key] + after[key]) / 2 for key in before})
    return results, rates


def floors(results: dict[str, list[float]], rates: list[Rates]) -> list[tuple[str, float, float]]:
    """Targets that are ratios to counted work, medians over the repeats, each against its own rates: (name, ratio, bound)."""
    rows: list[tuple[str, float, float]] = []
    if {"paceline 25m", "compute 25m"} <= results.keys():
        beyond = [ours - alone for ours, alone in zip(results["paceline 25m"], results["compute 25m"], strict=True)]
        floor_ms = [(2 + 6) * 0.1 / (rate["copy_2_threads_gb_s"] * 2) * 1e3 for rate in rates]
        rows.append(("time beyond compute / floor", median(a / b for a, b in zip(beyond, floor_ms, strict=True)), 1.5))
    if "paceline async exchange" in results:
        work_ms = [rate["apply_ms"] + rate["copy_ms"] + rate["norm_ms"] for rate in rates]
        ours = results["paceline async exchange"]
        rows.append(("async exchange / (apply + copy + norm)", median(a / b for a, b in zip(ours, work_ms, strict=True)), 1.5))
    return rows


def show(results: dict[str, list[float]], rates: list[Rates]) -> dict[str, object]:
    """Print the tables; return what the JSON file holds."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    middle = {name: median(times) for name, times in results.items()}
    for title, is_shown in (("medians of steps", lambda name: FOUR not in name), ("medians of steps, 4 ranks", lambda name: FOUR in name)):
        table = Table("contender", "ms", "lowest", "highest", title=title)
        for name, times in results.items():
            if is_shown(name):
                table.add_row(name, f"{middle[name]:.2f}", f"{min(times):.2f}", f"{max(times):.2f}")
        if table.row_count:
            console.print(table)
    ratios = [(name, middle[ours] / middle[peer], bound) for name, ours, peer, bound in TARGETS if ours in middle and peer in middle]
    ratios += floors(results, rates)
    verdicts = Table("ratio", "measured", "at most", "", title="against the targets")
    for name, ratio, bound in ratios:
        verdicts.add_row(name, f"{ratio:.2f}", f"{bound:.2f}", "reached" if ratio <= bound else "MISSED")
    console.print(verdicts)
    return {"ms": results, "median_ms": middle, "memory": rates, "ratios": [{"name": n, "ratio": r, "at_most": b} for n, r, b in ratios]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="*", help="contenders whose name contains one of these words")
    parser.add_argument("--ray", help="a Python that has ray, numpy and torch; its peer is left out without it")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "step.json")
    args = parser.parse_args()
    runs = contenders(args.steps, ray=args.ray)
    if args.only:
        runs = {name: run for name, run in runs.items() if any(word in name for word in args.only)}
    shown = show(*measure(runs, args.repeats))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(shown, indent=1))
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
