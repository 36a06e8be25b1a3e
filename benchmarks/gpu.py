"""Whether models on a GPU train as they should, and how long a step takes there: one script, for a machine that has one.

First the checks: every step's parameters are what the gradient on the device says, lockstep is plain PyTorch by either route,
paces that do not wait learn, the example trains in hybrid with two workers on one GPU. Then times: a step beside plain PyTorch,
with two GPUs or more beside DDP over NCCL, which the collective route then takes too; on one GPU it sums by Gloo. Prints tables,
writes JSON, ends with 1 when a check fails. `--rehearse` goes through all of it on the CPU with next to no work, and its times
mean nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from step import HERE, environment, measure_each, run_paceline, run_ranks

EXAMPLES = HERE.parent / "examples"
EXACT = 1e-5
PARITY = 1e-3
TIMEOUT_S = 600.0

Check = Callable[[argparse.Namespace], str]


def train(args: argparse.Namespace, pace: str, server_device: str) -> float:
    """The example under `paceline run`; its accuracy. Raises RuntimeError when it does not end well."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "paceline", "run", "--workers", "2", "--pace", pace, "--out", f"{folder}/run"]
        command += ["--server-device", server_device]
        command += [str(EXAMPLES / "mnist.py"), "--device", args.device, "--epochs", str(args.epochs)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
        if "every sample once" not in done.stdout:
            raise RuntimeError(f"not every sample was used once: {done.stdout[-500:]}")
        return float(json.loads(Path(folder, "run", "summary.json").read_text())["final"]["accuracy"])


def exact(args: argparse.Namespace, how: str) -> str:
    """Copies that begin too early, end too late or are torn change a step."""
    worst = run_paceline("exact_steps.py", [args.size, str(args.steps), args.device, how], 1, "sync")
    if not worst <= EXACT:
        raise RuntimeError(f"a step was off by {worst:.3g} of its largest gradient; allowed is {EXACT:g}")
    return f"off by {worst:.1e} of the largest gradient at most"


def parity(args: argparse.Namespace, route: str = "servers") -> str:
    """Two workers with half of each batch train what plain PyTorch trains with the whole of it."""
    with tempfile.TemporaryDirectory() as folder:
        plain, ours = (Path(folder) / name for name in ("plain.pt", "ours.pt"))
        script = [str(HERE / "peers" / "parity_train.py"), args.device]
        run = [sys.executable, "-m", "paceline", "run", "--workers", "2", "--pace", "sync", "--batch", "global"]
        run += ["--route", route, "--out", f"{folder}/run"]
        for command in ([sys.executable, *script, str(plain)], [*run, *script, str(ours)]):
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
        wanted, found = (torch.load(path) for path in (plain, ours))
    far = max(float((found[name] - value).norm() / value.norm().clamp(min=1e-12)) for name, value in wanted.items())
    if not far <= PARITY:
        raise RuntimeError(f"a parameter is {far:.3g} of its norm away from plain PyTorch's; allowed is {PARITY:g}")
    return f"{far:.1e} of a parameter's norm away at most"


def learns(args: argparse.Namespace, pace: str, server_device: str = "cpu") -> str:
    """The example, two workers on the device (on one each where there are two)."""
    accuracy = train(args, pace, server_device)
    if not accuracy >= args.accuracy:
        raise RuntimeError(f"the accuracy is {accuracy:.3f}, it should be {args.accuracy:g} at least")
    return f"accuracy {accuracy:.3f}"


CHECKS: dict[str, Check] = {
    "every step is exact": lambda args: exact(args, "plain"),
    "every step is exact under a GradScaler": lambda args: exact(args, "scaled"),
    "lockstep is plain PyTorch": parity,
    "lockstep is plain PyTorch by the collective route": lambda args: parity(args, "collective"),
    "async learns": lambda args: learns(args, "async"),
    "hybrid learns": lambda args: learns(args, "hybrid"),
    "hybrid learns with servers on the device": lambda args: learns(args, "hybrid", args.device),
}


def contenders(args: argparse.Namespace) -> dict[str, Callable[[], float]]:
    """Name to run: milliseconds of a step."""
    few = [args.size, str(args.steps)]
    runs: dict[str, Callable[[], float]] = {
        "plain, one process": lambda: run_ranks("plain_step.py", [*few, args.device], 1, {}),
        "paceline, one worker": lambda: run_paceline("paceline_step.py", [*few, args.device], 1, "sync"),
        "paceline, two workers": lambda: run_paceline("paceline_step.py", [*few, args.device], 2, "sync"),
        "paceline collective, two workers": lambda: run_paceline("paceline_step.py", [*few, args.device], 2, "sync", "collective"),
        "paceline async, two workers": lambda: run_paceline("paceline_step.py", [*few, args.device], 2, "async"),
    }
    if args.rehearse or torch.cuda.device_count() > 1:
        runs["ddp, two processes"] = lambda: run_ranks("ddp_step.py", [*few, "fused", args.device], 2, {})
    return runs


def check(args: argparse.Namespace) -> dict[str, str]:
    """What failed, by the check's name."""
    failed: dict[str, str] = {}
    for name, run in CHECKS.items():
        try:
            print(f"right: {name}, {run(args)}", flush=True)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed[name] = str(error)
            print(f"WRONG: {name}: {error}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, tiny, one repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu.json")
    args = parser.parse_args()
    args.device, args.size, args.epochs, args.accuracy = "cuda", "25m", 3, 0.9
    if args.rehearse:
        args.device, args.size, args.epochs, args.accuracy, args.repeats, args.steps = "cpu", "tiny", 1, 0.5, 1, 4
    elif not torch.cuda.is_available():
        print("benchmarks/gpu.py needs a CUDA device, and torch finds none here; --rehearse goes through it on the CPU", file=sys.stderr)
        return 2
    failed = check(args)
    results = measure_each(contenders(args), args.repeats)
    where = "CPU" if args.rehearse else f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    table = Table("contender", "ms", "lowest", "highest", title=f"a step of {args.size} parameters, {where}")
    for name, times in results.items():
        table.add_row(name, f"{median(times):.2f}", f"{min(times):.2f}", f"{max(times):.2f}")
    Console().print(table)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"where": where, "torch": torch.__version__, "failed": failed, "ms": results}, indent=1))
    print(f"written to {args.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
