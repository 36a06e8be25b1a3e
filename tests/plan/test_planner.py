"""Plans of real scripts: costs that can be counted by hand, pilots that are the beginnings of runs, and what is said of them."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from rich.console import Console

from paceline.cli import main
from paceline.dash.plan import tell_plan
from paceline.engine.virtual import run
from paceline.engine.virtual.trainee import workload
from paceline.pace import parse_pace
from paceline.plan.advise import advice
from paceline.plan.candidates import Candidate, Plan, candidate_paces
from paceline.plan.forecast import Clock, timed
from paceline.plan.profile import Profile
from paceline.roles.effects import JobSettings
from planned import plan_for, spirals
from virtually import IDEAL, cluster_of

STRAGGLER = f"""{IDEAL}
[[workers]]
count = 7
compute = 0.001
[[workers]]
count = 1
compute = 0.003
"""


def of(plan: Plan, pace: str) -> Candidate:
    return next(one for one in plan.candidates if one.pace == pace)


def profile_of(*, epochs: int, samples: int, batch: int) -> Profile:
    return Profile(epochs, samples, batch, 1e-3, 1e-3, 1e-3, 4000, 0, "SGD", 0, 500, {})


def test_a_forecast_is_what_can_be_counted_by_hand() -> None:
    """Eight workers, one of them three times as slow, 10 samples a batch, 1,000 parameters, a network that costs nothing."""
    work, profile = workload(4000, 240, batch=10, num_epochs=2, num_workers=8), profile_of(epochs=2, samples=2400, batch=10)
    settings = JobSettings(8, 1, parse_pace("sync"), patience_s=3600.0)
    found = timed(settings, cluster_of(STRAGGLER), work, profile, seed=0)
    assert found is not None
    cost = found.forecast
    assert cost.run_s == pytest.approx(60 * 0.03)
    assert cost.samples_per_s == pytest.approx(80 / 0.03)
    assert cost.compute_s == pytest.approx((7 * 0.01 + 0.03) / 8)
    # the last wait of each worker is told with a step that it never takes
    assert cost.wait_share == pytest.approx(7 * 0.02 / (8 * 0.03), rel=0.03)
    assert cost.straggling == pytest.approx(3.0)
    assert cost.step_bytes == pytest.approx(2 * 4000, rel=0.01)  # and everyone's first pull
    assert cost.updates_per_epoch == 30
    assert (cost.memory_worker_bytes, cost.memory_server_bytes) == (3 * 4000 + 500, 4000 + 4000 + 16 * 4000)
    free = timed(settings._replace(pace=parse_pace("async")), cluster_of(STRAGGLER), work, profile, seed=0)
    assert free is not None
    assert free.forecast.samples_per_s == pytest.approx(7 * 1000 + 1000 / 3, rel=0.02)
    # between a worker's read and its update lie as many updates as there are others, in the mean
    uneven = cluster_of(STRAGGLER.replace("compute", 'factor = "lognormal"\nspread = 0.2\ncompute'))
    free = timed(settings._replace(pace=parse_pace("async")), uneven, work, profile, seed=0)
    assert free is not None
    assert free.forecast.staleness["mean"] == pytest.approx(7, abs=0.3)


def test_a_clock_goes_on_as_fast_as_it_went_last() -> None:
    clock = Clock()
    for number, t_s in enumerate((1.0, 2.0, 4.0, 6.0), start=1):
        clock.note({"event": "update", "samples": 10 * number}, t_s)
    assert [clock.time_s(samples) for samples in (0, 5, 10, 25, 40, 60)] == [0.0, 0.5, 1.0, 3.0, 6.0, 10.0]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    script = spirals(tmp_path_factory.mktemp("plan"))
    return plan_for(script, "one-straggler", "accuracy=0.8", paces=("sync", "async", "hybrid"))


def test_a_profile_counts_bytes_exactly(plan: Plan) -> None:
    profile = plan.profile
    num_parameters = 2 * 48 + 48 + 48 * 48 + 48 + 48 * 3 + 3
    assert profile.parameter_bytes == 4 * num_parameters
    # Adam: two moments each; what says how they are packed, and a count for each tensor, come on top
    assert 8 * num_parameters <= profile.optimizer_bytes <= 8 * num_parameters + 2000
    # the input, two hidden layers after ReLU, log-probabilities, labels and the loss's total weight
    assert profile.activation_bytes == 16 * (4 * (2 + 48 + 48 + 3) + 8) + 4
    assert (profile.num_epochs, profile.epoch_samples, profile.batch, profile.buffer_bytes) == (10, 960, 16, 0)
    assert profile.optimizer == "Adam"
    assert 0.0 < profile.sample_low_s <= profile.sample_s <= profile.sample_high_s < 0.1
    assert set(profile.first) == {"loss", "accuracy"}


def test_a_plan_ranks_what_was_flown(plan: Plan) -> None:
    assert sorted(one.pace for one in plan.candidates) == ["async", "hybrid", "sync"]
    times = [one.arrival.time_s for one in plan.candidates if one.arrival is not None]
    assert len(times) == 3
    assert plan.candidates[0].rank == 1
    assert min(times) == times[0]
    assert of(plan, "sync").forecast.wait_share > 0.5 > 0.1 > of(plan, "async").forecast.wait_share
    assert of(plan, "async").forecast.staleness["p50"] >= 5
    # who went on to the target stopped there
    assert all(one.flown.samples <= one.arrival.samples + 4 * plan.profile.epoch_samples for one in plan.candidates if one.arrival)


def test_a_flight_is_the_beginning_of_the_run_itself(plan: Plan, tmp_path: Path) -> None:
    """What it logged, when it logged it; and what was timed without gradients is as fast as the run with them."""
    script = spirals(tmp_path)
    for pace in ("sync", "async"):
        code, out = run(script, out=tmp_path / pace, cluster="one-straggler", pace=pace)
        assert code == 0
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        logged = [(row["samples"], row["t_s"], row["accuracy"]) for row in rows if "accuracy" in row]
        flown = [(point.samples, round(point.t_s, 6), point.value) for point in of(plan, pace).points[1:]]
        assert flown
        assert flown == logged[: len(flown)]
        summary = json.loads((out / "summary.json").read_text())
        assert of(plan, pace).forecast.run_s == pytest.approx(summary["virtual_s"], rel=0.01)
        assert of(plan, pace).forecast.staleness["mean"] == pytest.approx(summary["staleness"]["mean"], rel=0.05, abs=0.01)


def test_the_advice_says_what_to_choose_and_why(plan: Plan) -> None:
    told = advice(plan)
    first = plan.candidates[0].pace
    assert told[0].startswith(f"Choose {first}: it reaches accuracy 0.8 after ")
    assert "since the slowest worker takes 3 times as long as the median one" in told[1]
    assert [sentence.partition(":")[0] for sentence in told[2:5]] == ["Precision", "Data", "Resources"]
    assert "one seed" in told[5]
    out = StringIO()
    tell_plan(Console(file=out, width=200), plan)
    for word in ("rank", "to accuracy 0.8", "samples/s", "async", "Choose"):
        assert word in out.getvalue()


def test_the_same_seed_gives_the_same_plan(plan: Plan, tmp_path: Path) -> None:
    again = plan_for(spirals(tmp_path), "one-straggler", "accuracy=0.8", paces=("sync", "async", "hybrid"))
    ours, theirs = (
        [structs.replace(one, flown=structs.replace(one.flown, real_s=0.0, full_real_s=0.0)) for one in each.candidates]
        for each in (plan, again)
    )
    assert ours == theirs


def test_the_mean_of_two_seeds_is_of_the_plans_of_each(tmp_path: Path) -> None:
    told = {"target": "accuracy>=0.65", "paces": ("sync", "async"), "workers": 4, "share": 1.0}
    script = spirals(tmp_path, epochs=6)
    alone = [plan_for(script, None, seed=seed, **told) for seed in (3, 4)]
    both = plan_for(script, None, seed=3, num_seeds=2, **told)
    assert both.seeds == (3, 4)
    assert both.effort.full_samples == sum(plan.effort.full_samples for plan in alone)
    assert "the seeds 3 and 4" in advice(both)[-1]
    for pace in ("sync", "async"):
        times_s = [arrival.time_s for plan in alone if (arrival := of(plan, pace).arrival) is not None and arrival.is_seen]
        arrival = of(both, pace).arrival
        assert arrival is not None
        assert arrival.is_seen
        assert arrival.time_s == pytest.approx(sum(times_s) / 2, rel=0.15)  # each profile begins elsewhere
        assert arrival.low_s < arrival.time_s < arrival.high_s


def test_without_a_target_it_is_the_loss_that_sync_comes_to(tmp_path: Path) -> None:
    found = plan_for(spirals(tmp_path, epochs=4), None, None, paces=("sync", "async"), workers=4)
    assert found.target is not None
    assert (found.target.metric, found.target.rising, found.is_own) == ("loss", False, False)
    assert of(found, "sync").arrival is not None
    assert "name your own with --target" in advice(found)[0]


def test_a_script_that_logs_nothing_is_ranked_by_speed_and_that_is_said(tmp_path: Path) -> None:
    script = spirals(tmp_path, epochs=2)
    script.write_text("\n".join(line for line in script.read_text().splitlines() if "run.log" not in line) + "\n            pass\n")
    found = plan_for(script, "one-straggler", None, paces=("sync", "async"))
    assert found.target is None
    assert found.candidates[0].pace == "async"
    assert "logs no metric" in advice(found)[0]


def test_a_target_out_of_reach_is_said_to_be(tmp_path: Path) -> None:
    found = plan_for(spirals(tmp_path, epochs=3), None, "accuracy=1.5", paces=("sync", "async"), workers=4, share=0.5)
    assert all(one.arrival is None for one in found.candidates)
    assert advice(found)[0].startswith("No pace came to accuracy 1.5 within the script's 3 epochs; ")


def test_failures_are_survived_and_counted(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('size = 4\n[[workers]]\nmtbf = "2 s"\nrepair = "100 ms"\n')
    found = plan_for(spirals(tmp_path, epochs=6), str(cluster), "accuracy=0.6", paces=("sync", "async"))
    assert max(one.forecast.num_lost for one in found.candidates) > 0
    assert "failures of workers fall into a run" in " ".join(advice(found))


def test_candidates_are_distinct() -> None:
    assert candidate_paces(2) == ["sync", "backup:1", "ksync:1", "ssp:3", "async", "hybrid"]


def test_the_command_writes_a_table_a_file_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, out = spirals(tmp_path, epochs=3), tmp_path / "plan"
    told = [
        "plan",
        str(script),
        "--cluster",
        "homogeneous",
        "--target",
        "loss<=1.0",
        "--pace",
        "sync",
        "--pace",
        "async",
        "--out",
        str(out),
    ]
    assert main([*told, "--json"]) == 0
    said = capsys.readouterr()
    content: dict[str, Any] = msgspec.json.decode(said.out)
    assert content == json.loads((out / "plan.json").read_text())
    assert content["candidates"][0]["rank"] == 1
    assert content["advice"][0].startswith("Choose ")
    assert "pilot of sync" in said.err
    page = (out / "plan.html").read_text()
    for word in ("Plan for train.py on homogeneous", "Choose ", "by-wall", "sync", "the target is loss 1"):
        assert word in page
    assert (out / "logs" / "sync" / "worker-0.log").exists()
    assert main(told) == 2
    assert f"--out: {out} is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["nowhere.py"], "the script nowhere.py does not exist"),
        ([], "plan needs a script, as in paceline plan SCRIPT --cluster FILE"),
        (["SCRIPT", "--target", "accuracy"], "--target: 'accuracy' is not a target"),
        (["SCRIPT", "--target", "f1=0.9"], "never logged 'f1' in the steps tried, it logs accuracy, loss"),
        (["SCRIPT", "--cluster", "moon"], "the cluster moon cannot be read: No such file or directory; ready-made ones are"),
        (["SCRIPT", "--cluster", "CLUSTER"], "sise is not a key, did you mean size?"),
        (["SCRIPT", "--pace", "fast"], "--pace: unknown pace 'fast'"),
        (["SCRIPT", "--pace", "hybrid:POLICY:choose"], "is a policy of your own, which a plan cannot try"),
        (["SCRIPT", "--workers", "0"], "--workers: 0 is not allowed"),
        (["SCRIPT", "--workers", "1", "--cluster", "one-straggler"], "the cluster needs at least 2 workers, got 1"),
        (["SCRIPT", "--seeds", "0"], "--seeds: 0 is not allowed, it must be from 1 to 100"),
        (["SCRIPT", "--share", "0"], "--share: 0 is not allowed, it must be from 0.01 to 1"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str) -> None:
    (tmp_path / "cluster.toml").write_text("sise = 4\n")
    (tmp_path / "policy.py").write_text("def choose(signals, history): ...\n")
    places = {"SCRIPT": str(spirals(tmp_path, epochs=1, samples=96)), "CLUSTER": str(tmp_path / "cluster.toml")}
    given = [places.get(word, word).replace("POLICY", str(tmp_path / "policy.py")) for word in options]
    assert main(["plan", *given, "--out", str(tmp_path / "plan")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("paceline: ")
    assert says in last


def test_a_script_that_fails_ends_the_plan_with_its_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise ValueError('no data')\n")
    assert main(["plan", str(script), "--out", str(tmp_path / "plan")]) == 1
    said = capsys.readouterr().err
    assert "no data" in said
    assert f"(what it printed is in {tmp_path / 'plan' / 'logs' / 'profile'})" in said
    assert "line 1" in (tmp_path / "plan" / "logs" / "profile" / "worker-0.log").read_text()
