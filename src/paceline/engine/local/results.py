"""The last lines of a run: what was done, whether every sample was counted, and where to look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from paceline.errors import PacelineError

_MOST_METRICS = 8
_MOST_PACES = 6


def ledger_text(ledger: Mapping[str, float]) -> str:
    """The ledger's verdict in words.

    >>> ledger_text({"once": 40, "repeated": 0, "skipped": 0, "undone": 0})
    'every sample once'
    >>> ledger_text({"once": 40, "repeated": 0, "skipped": 3, "undone": 0})
    '40 samples once, 3 skipped'
    >>> ledger_text({"undone": 3})
    "the loader's samples were not counted, 3 undone"
    """
    once = ledger.get("once", 0)
    others = [f"{ledger.get(key, 0):,.0f} {key}" for key in ("repeated", "skipped", "undone") if ledger.get(key, 0)]
    if once and not others:
        return "every sample once"
    told = f"{once:,.0f} samples once" if once or ledger.get("skipped", 0) else "the loader's samples were not counted"
    return ", ".join([told, *others])


def paces_text(paces: Mapping[str, float], moves: float) -> str:
    """Which part of the samples each pace had, and where to ask why.

    >>> paces_text({"sync": 512, "async": 1536}, 1)
    'sync 25 %, async 75 % of the samples, 1 change; `paceline why` and the run directory tell why'
    """
    whole = sum(paces.values()) or 1.0
    ordered = sorted(paces.items(), key=lambda one: -one[1]) if len(paces) > _MOST_PACES else list(paces.items())
    shown = [f"{name} {100.0 * samples / whole:.3g} %" for name, samples in ordered[:_MOST_PACES]]
    more = f" and {len(paces) - _MOST_PACES} more" if len(paces) > _MOST_PACES else ""
    changes = f"{moves:,.0f} change{'s' if moves != 1 else ''}"
    return f"{', '.join(shown)}{more} of the samples, {changes}; `paceline why` and the run directory tell why"


def result_lines(summary: Mapping[str, object]) -> list[str]:
    """What `summary.json` says, for people."""
    is_virtual = "virtual_s" in summary
    updates, samples, wall_s = (_number(summary, key) for key in ("updates", "samples", "virtual_s" if is_virtual else "wall_s"))
    if not updates:
        return ["no update was made"]
    made = f"{updates:,.0f} updates of {samples:,.0f} samples"
    if "wall_s" not in summary:
        return [f"{made} at least; the coordinator ended before it told more"]
    rate = f" ({samples / wall_s:,.0f} samples/s)" if wall_s else ""
    began = f"played in {_number(summary, 'wall_s'):,.1f} s" if is_virtual else f"started in {_number(summary, 'start_s'):,.1f} s"
    lines = [f"{made} in {wall_s:,.1f} {'virtual ' * is_virtual}s{rate}, {began}"]
    if isinstance(summary.get("ledger"), dict):
        lines.append(f"ledger: {ledger_text(cast('dict[str, float]', summary['ledger']))}")
    paces, moves = cast("dict[str, float]", summary.get("paces") or {}), _number(summary, "moves")
    if paces and moves:
        lines.append(f"paces: {paces_text(paces, moves)}")
    final = cast("dict[str, Any]", summary.get("final") or {})
    shown = [f"{name} {value:.4g}" for name, value in final.items() if isinstance(value, int | float)]
    if shown:
        lines.append(f"final: {', '.join(shown[:_MOST_METRICS])}")
    return lines


def _number(summary: Mapping[str, object], key: str) -> float:
    value = summary.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def report_line(run_dir: Path, write_report: Callable[[Path], Path]) -> str:
    """Make the report of the run; says where it is, or why there is none."""
    try:
        return f"report: {write_report(run_dir)}"
    except PacelineError as error:
        return f"no report: {error}"
