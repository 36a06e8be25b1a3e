"""How fast a push, an SGD update and a pull of 100 MB over TCP are, beside plain sockets that receive into place.

A worker and a server on loopback, the real ports and the real shard, with every protection of the wire; the peers send the
same bytes through as many connections, whole, and make the same update. Contenders run one after another, in alternating
order, `--repeats` times; a figure is the median over repeats of each run's median step. Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from paceline.transport.keys import write_key_file
from step import HERE, measure_each, run_ranks

TARGETS = (
    ("no checksum / plain sockets", "ours none", "sockets", 0.80),
    ("xxh3 / plain sockets", "ours xxh3", "sockets", 0.70),
    ("keys (MAC) / plain sockets", "ours mac", "sockets", 0.65),
    ("TLS / plain ssl sockets", "ours tls", "ssl sockets", 0.80),
)
"""Name, ours, the peer, and the least part of the peer's speed."""


def contenders(steps: int, key: Path) -> dict[str, Callable[[], float]]:
    """Name to run."""
    extra = {"BENCH_KEY": str(key)}

    def run(script: str, wire: str) -> Callable[[], float]:
        return lambda: run_ranks(script, [wire, str(steps)], 2, extra)

    runs = {"sockets": run("wire_sockets.py", "none"), "ssl sockets": run("wire_sockets.py", "tls")}
    return runs | {f"ours {wire}": run("wire_ours.py", wire) for wire in ("none", "xxh3", "mac", "tls")}


def show(results: dict[str, list[float]]) -> dict[str, object]:
    """Print the tables; return what the JSON file holds. A ratio is the median of each repeat's own."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("contender", "ms", "lowest", "highest", title="push + update + pull of 100 MB")
    for name, times in results.items():
        table.add_row(name, f"{median(times):.1f}", f"{min(times):.1f}", f"{max(times):.1f}")
    console.print(table)
    known = [target for target in TARGETS if target[1] in results and target[2] in results]
    ratios = [
        (name, median(peer_ms / ours_ms for ours_ms, peer_ms in zip(results[ours], results[peer], strict=True)), bound)
        for name, ours, peer, bound in known
    ]
    verdicts = Table("speed", "measured", "at least", "", title="against the targets")
    for name, ratio, bound in ratios:
        verdicts.add_row(name, f"{ratio:.2f}", f"{bound:.2f}", "reached" if ratio >= bound else "MISSED")
    console.print(verdicts)
    return {"ms": results, "ratios": [{"name": n, "ratio": r, "at_least": b} for n, r, b in ratios]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--only", nargs="*", help="contenders whose name contains one of these words")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "wire.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "job.key"
        write_key_file(key)
        runs = contenders(args.steps, key)
        if args.only:
            runs = {name: run for name, run in runs.items() if any(word in name for word in args.only)}
        results = measure_each(runs, args.repeats)
    shown = show(results)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(shown, indent=1))
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
