"""Cluster files: what they mean, and one clear sentence for each that cannot be meant."""

from __future__ import annotations

import re
from math import inf
from pathlib import Path

import msgspec
import pytest

from launch import ROOT
from paceline.engine.virtual.cluster import EVEN, Between, Cluster, Group, Network, Seconds, Servers, crew_of
from paceline.engine.virtual.cluster_file import read_cluster, ready_made
from paceline.engine.virtual.compute import Rhythm, stream
from paceline.errors import ConfigError


def read(folder: Path, text: str) -> Cluster:
    file = folder / "mine.toml"
    file.write_text(text)
    return read_cluster(str(file)).cluster


def test_quantities_have_units(tmp_path: Path) -> None:
    cluster = read(
        tmp_path,
        """
        [network]
        bandwidth = "1 Gbit/s"
        inside_bandwidth = "inf"
        latency = "250 us"

        [[workers]]
        compute = "1.5 ms"
        mtbf = "2 h"
        slow = [{ from = "1 min", to = "90 s", factor = 4 }]
        """,
    )
    assert (cluster.network.bandwidth, cluster.network.inside_bandwidth, cluster.network.latency) == (125e6, inf, 250e-6)
    group = cluster.workers[0]
    assert (group.compute, group.mtbf, group.slow[0].start_s, group.slow[0].stop_s) == (1.5e-3, 7200.0, 60.0, 90.0)


def test_without_a_file_workers_are_even() -> None:
    assert len(crew_of(EVEN, 5)) == 5
    assert EVEN.workers[0].compute == 1e-3
    assert (EVEN.network.bandwidth, EVEN.network.latency) == (1.25e9, 1e-4)


@pytest.mark.parametrize("name", ready_made())
def test_a_ready_made_cluster_says_what_it_is_and_how_large(name: str) -> None:
    cluster = read_cluster(name).cluster
    assert cluster.about.endswith(".")
    assert cluster.default_workers is not None
    for num_workers in (cluster.default_workers, 32):
        assert len(crew_of(cluster, num_workers)) == num_workers


def test_all_clusters_that_are_promised_are_there() -> None:
    assert {"homogeneous", "one-straggler", "spot", "two-regions", "wan", "phones"} <= set(ready_made())


def test_groups_without_a_count_share_what_is_left() -> None:
    cluster = Cluster(workers=(Group(count=1, times=1.0), Group(times=2.0), Group(times=3.0)))
    assert [group.times for group in crew_of(cluster, 6)] == [1.0, 2.0, 2.0, 2.0, 3.0, 3.0]


WRONG = {
    "an unknown key": ("[[workers]]\ncomputee = '1 ms'", r"workers\[0\].computee is not a key, did you mean compute\?"),
    "an unknown key far in": ("[[workers]]\nslow = [{factor = 2, form = '1 s'}]", r"workers\[0\].slow\[0\].form .* did you mean from\?"),
    "an unknown key on top": ("machines = 3", "machines is not a key, allowed: about, size"),
    "a unit that is none": ("[[workers]]\ncompute = '1 parsec'", r"workers\[0\].compute: '1 parsec' is not a time"),
    "no unit": ("[network]\nbandwidth = '10'", "network.bandwidth: '10' is not a bandwidth, write a number and one of bit/s"),
    "a negative time": ("[[workers]]\ncompute = -1", r"workers\[0\].compute is -1.0, it must be 0 or more"),
    "no bandwidth": ("[network]\nbandwidth = 0", "network.bandwidth is 0.0, it must be above 0"),
    "a negative bandwidth": (
        "[[network.between]]\nregions = ['', 'far']\nlatency = 0\nbandwidth = -1",
        r"between\[0\].bandwidth is -1.0, it must be above 0",
    ),
    "a server that works at no speed": ("[servers]\napply = 0", "servers.apply is 0.0, it must be above 0"),
    "no server": ("[servers]\ncount = 0", "servers.count is 0, it must be at least 1"),
    "zero workers": ("size = 0", "size is 0, it must be at least 1"),
    "nobody": ("workers = []", "workers is empty, it must be at least one group"),
    "none of a group": ("[[workers]]\ncount = 0", r"workers\[0\].count is 0, it must be at least 1"),
    "not a number": ("[[workers]]\ncount = 'many'", r"workers\[0\].count: expected `int \| null`, got `str`"),
    "a factor that is none": ("[[workers]]\nfactor = 'gamma'", r"workers\[0\].factor: invalid enum value 'gamma'"),
    "a list without a file": ("[[workers]]\nfactor = 'recorded'", r"workers\[0\].recorded is None, it must be a file"),
    "a file that is not there": ("[[workers]]\nprofile = 'gone'", "gone cannot be read: No such file"),
    "a rate of failures": ("[[workers]]\nmtbf = 0", r"workers\[0\].mtbf is 0.0, it must be above 0"),
    "a leave before the join": ("[[workers]]\njoins = 5\nleaves = 4", r"workers\[0\].leaves is 4.0, it must be later than it joins"),
    "no way to the servers": ("[[workers]]\nregion = 'west'", "workers in 'west' cannot reach the servers in ''"),
    "a region of nobody": (
        "[network]\nbetween = [{regions = ['', 'moon'], latency = 1}]\n[[workers]]",
        "network.between names the region 'moon', allowed: ''",
    ),
    "not TOML": ("workers = [", "is not TOML"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_with_one_sentence(case: str, tmp_path: Path) -> None:
    text, sentence = WRONG[case]
    with pytest.raises(ConfigError, match=sentence) as refused:
        read(tmp_path, text)
    assert "\n" not in str(refused.value)


def test_a_cluster_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="the cluster nowhere cannot be read: No such file or directory; ready-made ones are homogeneous"):
        read_cluster("nowhere")


@pytest.mark.parametrize(
    ("cluster", "num_workers", "sentence"),
    [
        (Cluster(workers=(Group(count=3),)), 4, "groups have 3 workers, so --workers must be 3, got 4"),
        (Cluster(workers=(Group(count=3), Group())), 3, "needs at least 4 workers, got 3"),
        (Cluster(workers=(Group(joins=Seconds(1.0)),)), 2, "every worker of the cluster joins late"),
    ],
)
def test_a_cluster_of_another_size_is_refused(cluster: Cluster, num_workers: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        crew_of(cluster, num_workers)


@pytest.mark.parametrize(
    ("factor", "spread"), [("constant", 0.0), ("normal", 0.3), ("lognormal", 0.8), ("exponential", 0.0), ("recorded", 0.0)]
)
def test_every_factor_has_the_mean_1(factor: str, spread: float) -> None:
    group = Group(compute=Seconds(0.5), factor=factor, spread=spread, recorded="times")  # type: ignore[arg-type]
    rhythm = Rhythm(group, 0, stream(0, factor), {"times": (1.0, 2.0, 6.0)})
    times_s = [rhythm.step_s(2, 0.0) for _ in range(20_000)]
    assert sum(times_s) / len(times_s) == pytest.approx(1.0, rel=0.03)
    assert (len(set(times_s)) == 1) == (factor == "constant")


def test_a_profile_is_taken_as_it_is_times_its_factor_from_places_far_apart() -> None:
    group = Group(profile="steps", times=2.0)
    times = {"steps": tuple(float(i) for i in range(10_000))}
    first, second = (Rhythm(group, worker, stream(0), times) for worker in (0, 1))
    assert [first.step_s(32, 0.0) for _ in range(3)] == [0.0, 2.0, 4.0]
    assert second.step_s(1, 0.0) == 2.0 * 7919


def test_a_slow_period_slows_the_steps_that_begin_in_it(tmp_path: Path) -> None:
    group = read(tmp_path, "[[workers]]\nslow = [{ from = 10, to = 20, factor = 3 }]").workers[0]
    rhythm = Rhythm(group, 0, stream(0), {})
    assert [rhythm.step_s(1, now_s) for now_s in (9.9, 10.0, 19.9, 20.0)] == pytest.approx([1e-3, 3e-3, 3e-3, 1e-3])


PAGE = (ROOT / "docs" / "virtual.md").read_text()


def test_the_file_that_the_page_shows_says_what_the_page_says(tmp_path: Path) -> None:
    shown = next(block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
    cluster = read(tmp_path, shown)
    crew = crew_of(cluster, 8)
    assert [group.region for group in crew] == ["east"] * 6 + ["west"] * 2
    keys = {field.encode_name for kind in (Cluster, Group, Network, Servers, Between) for field in msgspec.structs.fields(kind)}
    assert {key for key in keys if f"{key} = " in shown or f"[{key}]" in shown or f".{key}]]" in shown} >= keys - {
        *("about", "recorded", "profile", "times", "bandwidth")
    }


def test_the_page_lists_the_clusters_that_come_along() -> None:
    section = PAGE.partition("\n## Clusters\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)) == ready_made()
