"""The promise of a plan: its first pace is as good as the best that running every candidate to the end would have found."""

from __future__ import annotations

import json
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import correlation

import pytest

from paceline.engine.virtual import run
from planned import plan_for, spirals

AIM = 0.85


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
    plan = plan_for(script, cluster, f"accuracy>={AIM}")
    assert plan.effort.flown_samples < 0.7 * plan.effort.full_samples
    whole: dict[str, float] = {}
    for one in plan.candidates:
        code, out = run(script, out=tmp_path / one.pace.replace(":", "-"), cluster=cluster, pace=one.pace)
        assert code == 0
        whole[one.pace] = time_to(out, AIM)
    predicted = {one.pace: inf if one.arrival is None else one.arrival.time_s for one in plan.candidates}
    print(cluster, {pace: (round(predicted[pace], 2), round(whole[pace], 2)) for pace in predicted}, plan.effort)
    assert whole[plan.candidates[0].pace] <= 1.1 * min(whole.values())
    assert correlation(places(list(predicted.values())), places([whole[pace] for pace in predicted])) >= 0.8
