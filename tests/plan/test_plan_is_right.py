"""The promise of a plan: its first pace is as good as the best that running every candidate to the end would have found."""

from __future__ import annotations

import json
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import correlation

import pytest

from paceline.engine.virtual import run
from paceline.plan.candidates import candidate_paces
from planned import plan_for, spirals

AIMS = (0.85, 0.95)
"""What most pilots nearly come to, and what none does: farther away, paces that are alike change places."""


def time_to(out: Path, aim: float) -> float:
    """When the accuracy of a finished run first met the aim, on the line between its evaluations."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    logged = [(0.0, 0.33), *((row["t_s"], row["accuracy"]) for row in rows if "accuracy" in row)]
    for (t_s, value), (later_s, reached) in pairwise(logged):
        if reached >= aim:
            return t_s + (aim - value) / (reached - value) * (later_s - t_s)
    return inf


def places(times: list[float]) -> list[float]:
    """Each one's place, the mean of them for what is equal."""
    return [sum(other < one for other in times) + (sum(other == one for other in times) - 1) / 2 for one in times]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", ["homogeneous", "one-straggler", "two-regions", "wan"])
def test_the_first_of_a_plan_is_within_a_tenth_of_the_best_by_full_runs(tmp_path: Path, cluster: str) -> None:
    script = spirals(tmp_path, samples=1920, epochs=20)
    outs: dict[str, Path] = {}
    for pace in candidate_paces(8):
        code, outs[pace] = run(script, out=tmp_path / pace.replace(":", "-"), cluster=cluster, pace=pace)
        assert code == 0
    for aim in AIMS:
        plan = plan_for(script, cluster, f"accuracy>={aim}")
        assert plan.effort.flown_samples < 0.5 * plan.effort.full_samples
        whole = {pace: time_to(out, aim) for pace, out in outs.items()}
        predicted = {one.pace: inf if one.arrival is None else one.arrival.time_s for one in plan.candidates}
        found = correlation(places(list(predicted.values())), places([whole[pace] for pace in predicted]))
        print(cluster, aim, {pace: (round(predicted[pace], 2), round(whole[pace], 2)) for pace in predicted}, round(found, 2))
        assert whole[plan.candidates[0].pace] <= 1.1 * min(whole.values())
        assert found >= (0.8 if aim == AIMS[0] else 0.6)
