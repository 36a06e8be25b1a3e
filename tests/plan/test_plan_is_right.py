"""The promise of a plan: its first pace is as good as the best that running every candidate to the end would have found."""

from __future__ import annotations

import json
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import correlation, fmean

import pytest

from paceline.engine.virtual import run
from paceline.plan.candidates import candidate_paces
from planned import plan_for, spirals

AIMS = (0.85, 0.95)
"""Early, and where learning becomes slow and paces change places."""
SEEDS = range(3)
"""Of the full runs; a plan has the first two of them. One set against another with other seeds correlates no better than
a plan does: docs/planner.md has the numbers."""


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
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cluster", ["homogeneous", "one-straggler", "two-regions", "wan"])
def test_a_plan_ranks_as_full_runs_do_and_its_first_is_within_a_tenth_of_the_best(tmp_path: Path, cluster: str) -> None:
    script = spirals(tmp_path, samples=1920, epochs=20)
    outs: dict[str, list[Path]] = {}
    for pace in candidate_paces(8):
        for seed in SEEDS:
            code, out = run(script, out=tmp_path / f"{pace.replace(':', '-')}-{seed}", cluster=cluster, pace=pace, seed=seed)
            assert code == 0
            outs.setdefault(pace, []).append(out)
    for aim in AIMS:
        plan = plan_for(script, cluster, f"accuracy>={aim}", num_seeds=2)
        assert plan.effort.flown_samples < 0.6 * plan.effort.full_samples
        whole = {pace: fmean(time_to(out, aim) for out in each) for pace, each in outs.items()}
        told = {one.pace: inf if one.arrival is None else one.arrival.time_s for one in plan.candidates}
        found = correlation(places(list(told.values())), places([whole[pace] for pace in told]))
        print(cluster, aim, {pace: (round(told[pace], 2), round(whole[pace], 2)) for pace in told}, round(found, 2), plan.effort)
        assert whole[plan.candidates[0].pace] <= 1.1 * min(whole.values())
        assert found >= 0.8
