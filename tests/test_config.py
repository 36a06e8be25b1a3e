"""Settings: which source wins, what is refused and with which words, and that run.toml gives back what it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.config import COMMAND_LINE, DEFAULT, INIT, Resolved, Sizes, Slow, explain, from_toml, resolve, to_toml
from paceline.errors import ConfigError
from paceline.hybrid import Hybrid, parse_mode
from paceline.pace import parse_pace
from paceline.settings import FIELDS, as_mode, duration_s


def settle(**told: Any) -> Resolved:
    return resolve(**{"cores": 2, "stamp": "20260101-120000", "script": "train.py"} | told)


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = settle(script="some/train.py").settings
    assert (settings.workers, settings.servers, settings.pace) == (2, 2, parse_mode("hybrid"))
    assert (settings.leases, settings.batch, settings.shares, settings.lr_rule, settings.seed) == ("exact", "per-worker", "even", None, 0)
    assert (settings.patience_s, settings.slow, settings.compute) == (60.0, (), None)
    assert settings.out == "runs/train-20260101-120000"


def test_a_virtual_cluster_has_the_size_that_it_says_unless_somebody_says_otherwise() -> None:
    told = {"cores": 2, "sizes_of": lambda cluster: Sizes(8, 3 if cluster == "mine" else None)}
    for line, workers, servers in (
        ({}, 8, 8),
        ({"cluster": "mine"}, 8, 3),
        ({"cluster": "mine", "servers": 5}, 8, 5),
        ({"workers": 64}, 64, 64),
    ):
        settings = settle(command_line={"engine": "virtual", **line}, **told).settings
        assert (settings.workers, settings.servers) == (workers, servers)
    assert settle(**told).settings.workers == 2


@pytest.mark.parametrize(
    ("told", "refusal"),
    [
        ({"cluster": "spot"}, "--cluster: 'spot' is not allowed with the engine local, it needs engine virtual"),
        ({"gradients": "no"}, "--no-gradients: leaving gradients out is not allowed with the engine local, it needs engine virtual"),
        ({"gradients": "maybe"}, "--no-gradients: 'maybe' is not allowed, it must be yes or no"),
        ({"engine": "slurm"}, "--engine: 'slurm' is not allowed, it must be local or virtual or torchrun or ray"),
        ({"min_workers": 1}, "--min-workers: 1 is not allowed with the engine local, it needs engine ray"),
        ({"address": "auto"}, "--address: auto is not allowed with the engine local, it needs engine ray"),
        (
            {"engine": "ray", "workers": 4, "min_workers": 5},
            "--min-workers: 5 is not allowed, it must be at most the number of workers, 4",
        ),
        (
            {"engine": "ray", "workers": 4, "max_workers": 3},
            "--max-workers: 3 is not allowed, it must be at least the number of workers, 4",
        ),
        ({"engine": "ray", "max_workers": 0}, "--max-workers: 0 is not allowed, it must be a whole number from 1 to 1024"),
        (
            {"engine": "ray", "address": "ray://there:10001"},
            "--address: 'ray://there:10001' is not allowed, it must be HOST:PORT of a Ray cluster, auto or local",
        ),
    ],
)
def test_what_only_one_engine_can_do_is_refused_by_the_others(told: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settle(command_line=told)
    assert str(refused.value) == refusal


@pytest.mark.parametrize(("cores", "workers", "servers"), [(8, 4, 4), (2, 8, 2), (1, 1, 1)])
def test_servers_are_as_many_as_workers_but_at_most_one_per_core(cores: int, workers: int, servers: int) -> None:
    assert settle(cores=cores, command_line={"workers": workers}).settings.servers == servers


def test_each_source_beats_the_ones_below_it(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("seed = 3\n")
    sources: list[tuple[dict[str, Any], int, str]] = [
        ({}, 0, DEFAULT),
        ({"environ": {"PACELINE_SEED": "4"}}, 4, "PACELINE_SEED"),
        ({"config": str(file)}, 3, str(file)),
        ({"init": {"seed": 2}}, 2, INIT),
        ({"command_line": {"seed": "1"}}, 1, COMMAND_LINE),
    ]
    told: dict[str, Any] = {}
    for more, seed, origin in sources:
        told |= more
        resolved = settle(**told)
        assert (resolved.settings.seed, resolved.origins["seed"]) == (seed, origin)


EVERY = {
    "local": {"workers": "3", "servers": "2", "pace": "ssp:2", "leases": "static", "batch": "global", "shares": "even", "lr_rule": "none",
              "out": "there", "seed": "5", "slow": "0=2", "compute": f"recorded:{Path(__file__).parent / 'scripts' / 'step times.json'}",
              "patience": "90s", "engine": "local", "route": "servers", "server_device": "cuda:1"},
    "virtual": {"cluster": "spot", "gradients": "no"},
    "ray": {"min_workers": "1", "max_workers": "9", "address": "auto"},
}  # fmt: skip
"""For each engine settings that it takes, none of them the default."""


def test_every_setting_may_stand_in_the_environment_in_a_file_and_on_the_command_line(tmp_path: Path) -> None:
    assert {name for settings in EVERY.values() for name in settings} == FIELDS.keys()
    for engine, settings in EVERY.items():
        given = {**settings, "engine": engine}
        file = tmp_path / f"{engine}.toml"
        file.write_text("".join(f'{name.replace("_", "-")} = "{value}"\n' for name, value in given.items()))
        resolved = {
            "PACELINE_": settle(environ={f"PACELINE_{name.upper()}": value for name, value in given.items()}),
            COMMAND_LINE: settle(command_line=given),
            str(file): settle(config=str(file)),
        }
        for place, found in resolved.items():
            for name, value in given.items():
                assert FIELDS[name].text(found.settings) == value, (place, name)
                assert found.origins[name].startswith(place), (place, name)


def test_the_script_may_choose_the_pace_unless_the_command_line_did(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text('pace = "ssp:3"\n')
    assert settle().pace_is_open
    assert settle(config=str(file)).pace_is_open
    assert settle(environ={"PACELINE_PACE": "async"}).pace_is_open
    assert not settle(command_line={"pace": "sync"}).pace_is_open


def test_a_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text('lr-rule = "none"\npatience = 90\nslow = ["1=4@0.25-0.5", "0=2"]\n')
    resolved = settle(environ={"PACELINE_CONFIG": str(file)})
    assert (resolved.settings.lr_rule, resolved.settings.patience_s) == ("none", 90.0)
    assert resolved.settings.slow == (Slow(0, 2.0), Slow(1, 4.0, 0.25, 0.5))
    assert resolved.origins["config"] == "PACELINE_CONFIG"


def test_what_an_engine_tells_its_own_processes_is_no_setting() -> None:
    assert settle(environ={"PACELINE_JOB_TOKEN": "x", "HOME": "/"}) == settle()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("60s", 60.0), ("2m", 120.0), ("500ms", 0.5), ("1h", 3600.0), ("1.5 m", 90.0), ("7", 7.0), (7, 7.0), (0.25, 0.25)],
)
def test_a_duration_has_a_unit_or_is_seconds(value: object, seconds: float) -> None:
    assert duration_s(value) == seconds


@pytest.mark.parametrize(
    ("command_line", "says"),
    [
        ({"workers": "0"}, "--workers: 0 is not allowed, it must be a whole number from 1 to 1024"),
        ({"workers": "-3"}, "--workers: -3 is not allowed"),
        ({"workers": "many"}, "--workers: 'many' is not allowed, it must be a whole number from 1 to 1024"),
        ({"workers": True}, "--workers: True is not allowed"),
        ({"workers": 2.0}, "--workers: 2.0 is not allowed"),
        ({"servers": "0"}, "--servers: 0 is not allowed, it must be a whole number from 1 to 1024"),
        ({"seed": "-1"}, "--seed: -1 is not allowed, it must be a whole number from 0 to 2147483647"),
        ({"pace": "fast"}, "--pace: unknown pace 'fast', allowed: sync, "),
        ({"pace": 3}, "--pace: 3 is not allowed, it must be one of sync, "),
        ({"pace": "ksync:3"}, "--pace: pace 'ksync:3' needs 3 different workers for an update, with 2 it must be 1 to 2"),
        (
            {"pace": "ksync:3", "engine": "ray", "workers": 4, "min_workers": 2},
            "--pace: pace 'ksync:3' needs 3 different workers for an update, with 2 it must be 1 to 2",
        ),
        ({"pace": "ssp:-1"}, "--pace: pace 'ssp:-1': '-1' is not allowed, it must be a whole number from 0"),
        ({"leases": "loose"}, "--leases: 'loose' is not allowed, it must be exact or static"),
        ({"batch": "big"}, "--batch: 'big' is not allowed, it must be per-worker or global"),
        ({"pace": "hybrid:greedy"}, "--pace: pace 'hybrid:greedy': 'greedy' is not a policy, allowed: hybrid, "),
        ({"pace": "hybrid:sync@0,async@1.5"}, "--pace: pace 'hybrid:sync@0,async@1.5': '1.5' is not a share of the work, it must be"),
        (
            {"pace": "hybrid:sync@0,async@0.5,ssp:3@0.2"},
            "--pace: pace 'hybrid:sync@0,async@0.5,ssp:3@0.2': shares must grow, 0.2 comes after",
        ),
        ({"pace": "hybrid:sync@0,ksync:3@0.5"}, "--pace: pace 'ksync:3' needs 3 different workers for an update, with 2 it must be 1 to 2"),
        ({"pace": "hybrid:adasync:3"}, "--pace: pace 'hybrid:adasync:3' begins with 3 workers, with 2 it must be 1 to 2"),
        ({"shares": "fair"}, "--shares: 'fair' is not allowed, it must be even or speed"),
        ({"shares": "speed", "leases": "static"}, "--shares: speed is not allowed with leases static"),
        ({"server_device": "gpu 1"}, "--server-device: 'gpu 1' is not allowed, it must be cpu or a device as torch names it: cuda, cuda:1"),
        (
            {"server_device": "cuda", "engine": "virtual"},
            "--server-device: 'cuda' is not allowed with the engine virtual, whose servers stay on the cpu",
        ),
        ({"lr_rule": "cubic"}, "--lr-rule: 'cubic' is not allowed, it must be linear or sqrt or none"),
        ({"lr_rule": "linear", "pace": "async"}, "--lr-rule: pace 'async' weighs gradients by staleness"),
        ({"patience": "soon"}, "--patience: 'soon' is not a duration, write it as 60s, 2m, 500ms or 1h"),
        ({"patience": "0s"}, "--patience: '0s' is not allowed, it must be from 100ms to 24h"),
        ({"patience": "-5s"}, "--patience: '-5s' is not a duration"),
        ({"slow": "1"}, "--slow: '1' is not a slowdown, write WORKER=FACTOR or WORKER=FACTOR@FROM-TO"),
        ({"slow": "1=0.5"}, "--slow: factor 0.5 in '1=0.5' is not allowed, it must be from 1 to 1000"),
        ({"slow": "1=-4"}, "--slow: factor -4 in '1=-4' is not allowed"),
        ({"slow": "2=4"}, "--slow: worker 2 does not exist, with 2 it must be 0 to 1"),
        ({"slow": "1=4@0.5-0.5"}, "--slow: span 0.5-0.5 in '1=4@0.5-0.5' is not allowed, FROM must be below TO, both from 0 to 1"),
        ({"slow": "1=4@0.5-1.5"}, "--slow: span 0.5-1.5"),
        ({"slow": "1=4,1=2"}, "--slow: worker 1 is slowed twice at the same time"),
        ({"slow": 3}, "--slow: 3 is not allowed, it must be a list of WORKER=FACTOR texts"),
        ({"compute": "real"}, "--compute: 'real' is not allowed, it must be recorded:FILE"),
        ({"compute": "recorded:"}, "--compute: 'recorded:' is not allowed"),
        ({"compute": "recorded:/nope"}, "--compute: recorded:/nope cannot be read: No such file or directory"),
        ({"compute": f"recorded:{__file__}"}, "--compute: recorded:"),
        ({"out": ""}, "--out: '' is not allowed, it must be a path"),
        ({"speed": "1"}, "command line: speed is not a setting, did you mean seed?"),
    ],
)
def test_a_refusal_names_the_place_the_value_and_what_is_allowed(command_line: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        settle(command_line=command_line)
    assert str(refusal.value).startswith(says)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"PACELINE_WORKERS": "0"}, "PACELINE_WORKERS: 0 is not allowed"),
        ({"PACELINE_WORKRS": "4"}, "the environment variable PACELINE_WORKRS is not a setting, did you mean PACELINE_WORKERS?"),
        ({"PACELINE_ZZZ": "4"}, "the environment variable PACELINE_ZZZ is not a setting, allowed: PACELINE_WORKERS, "),
    ],
)
def test_an_environment_variable_is_named_when_it_is_wrong(environ: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        settle(environ=environ)
    assert str(refusal.value).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workers = 0", "{file}: workers: 0 is not allowed"),
        ("wokers = 4", "{file}: wokers is not a setting, did you mean workers?"),
        ("lr-rule = 'none'\nlr_rule = 'none'", "{file}: lr_rule is given twice"),
        ("workers = ", "the configuration file {file} is not TOML: "),
        (b"\xff", "the configuration file {file} is not TOML: "),
    ],
)
def test_a_file_is_named_when_it_is_wrong(text: str | bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as refusal:
        settle(config=str(file))
    assert str(refusal.value).startswith(says.format(file=file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read: No such file"):
        settle(config=str(tmp_path / "nowhere.toml"))


def test_an_argument_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="not UTF-8"):
        settle(args=["caf\udce9"])


def test_a_pace_value_travels_by_its_name() -> None:
    assert as_mode(parse_pace("ssp:2")) == parse_pace("ssp:2")
    assert as_mode(parse_mode("hybrid:adasync:2")) == parse_mode("hybrid:adasync:2")
    with pytest.raises(ConfigError, match="the Pace given differs from what its name 'ssp:2' stands for"):
        as_mode(type(parse_pace("ssp:2"))("ssp:2"))
    with pytest.raises(ConfigError, match="the Hybrid given differs from what its name 'hybrid' stands for"):
        as_mode(Hybrid("hybrid", "syncswitch", parse_pace("sync")))


@pytest.mark.parametrize(
    ("told", "cuts"),
    [
        ({}, False),
        ({"batch": "global"}, True),
        ({"shares": "speed"}, True),
        ({"pace": "hybrid:stragglers"}, True),
        ({"pace": "hybrid:stragglers", "leases": "static"}, False),
    ],
)
def test_batches_are_cut_when_their_parts_are_not_fixed(told: dict[str, str], cuts: bool) -> None:
    assert settle(command_line=told).settings.cuts_samples is cuts


@pytest.mark.parametrize("text", ["def choose(signals, history): ...", "from some import choose", "if True:\n    choose = print"])
def test_a_policy_of_ones_own_is_looked_up_before_the_run(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert settle(command_line={"pace": f"hybrid:{file}:choose"}).settings.pace == parse_mode(f"hybrid:{file}:choose")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read: No such file or directory"),
        ("def chose(signals, history): ...", "defines no choose at its top level"),
        ("def other():\n    choose = 1", "defines no choose at its top level"),
        ("print(choose)", "defines no choose at its top level"),
        ("x = 1\ndef choose(:", "is not Python, line 2: "),
        ("x = '\0'", "is not Python"),
        (b"\xff", "is not Python: "),
    ],
)
def test_a_policy_that_is_not_there_is_refused(text: str | bytes | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as refusal:
        settle(command_line={"pace": f"hybrid:{file}:choose"})
    assert str(refusal.value).startswith(f"pace 'hybrid:{file}:choose': the policy's file {file} {says}")


def test_spans_of_one_worker_may_follow_each_other() -> None:
    slow = settle(command_line={"slow": "1=4@0.5-1,1=2@0-0.5"}).settings.slow
    assert slow == (Slow(1, 2.0, 0.0, 0.5), Slow(1, 4.0, 0.5, 1.0))


def test_what_is_probably_not_meant_is_warned_of() -> None:
    assert settle().warnings() == []
    assert "steady staleness" in settle(command_line={"pace": "async,max_staleness=0"}).warnings()[0]


def test_explain_has_a_row_for_every_setting_with_its_origin() -> None:
    rows = explain(settle(command_line={"slow": "1=4@0.25-0.75"}, environ={"PACELINE_PATIENCE": "2m"}))
    assert ("slow", "1=4@0.25-0.75", COMMAND_LINE) in rows
    assert ("patience", "120s", "PACELINE_PATIENCE") in rows
    assert ("workers", "2", DEFAULT) in rows
    assert [row[0] for row in rows] == [
        *("workers", "servers", "pace", "leases", "batch", "shares", "lr_rule", "out", "seed", "slow", "compute", "patience"),
        *("engine", "route", "server_device", "cluster", "gradients", "min_workers", "max_workers", "address", "config"),
    ]


TIMES = Path(__file__).parent / "scripts" / "step times.json"
TOLD = st.fixed_dictionaries(
    {"workers": st.integers(3, 1024)},
    optional={
        "servers": st.integers(1, 1024),
        "pace": st.sampled_from(
            ["sync", "ksync:3,grace_s=0.05", "ssp:0", "async,weighting=polynomial:0.3", "hybrid", "dssp:1:9", "hybrid:sync@0,async@0.1"]
        ),
        "leases": st.sampled_from(["exact", "static"]),
        "shares": st.just("even"),
        "batch": st.sampled_from(["per-worker", "global"]),
        "lr_rule": st.just("none"),
        "seed": st.integers(0, 2**31 - 1),
        "slow": st.lists(st.sampled_from(["0=4", "1=1.5@0-0.333333", "2=1000@0.5-1"]), unique=True),
        "compute": st.just(f"recorded:{TIMES}"),
        "patience": st.floats(0.1, 86400).map(lambda seconds: f"{seconds:.6f}s"),
        "engine": st.just("virtual"),
    },
)


@given(TOLD, st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))))
def test_run_toml_gives_back_what_it_was_given(told: dict[str, object], args: list[str]) -> None:
    resolved = settle(command_line=told, args=args)
    assert from_toml(to_toml(resolved)) == resolved


def test_run_toml_is_a_file_that_config_takes(tmp_path: Path) -> None:
    first = settle(command_line={"workers": 3, "pace": "ssp:2", "slow": "1=4", "out": "runs/first"})
    file = tmp_path / "run.toml"
    file.write_text(to_toml(first), encoding="utf-8")
    again = settle(config=str(file)).settings
    assert (again.workers, again.pace, again.slow) == (3, first.settings.pace, first.settings.slow)
    assert again.out != "runs/first"


@pytest.mark.parametrize(
    "text", ["", "workers = 3", "[run]\n[origin]\n", "workers =", "workers = 3\n[run]\nout='x'\nscript='y'\nargs=3\n[origin]\n"]
)
def test_run_toml_of_another_make_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the settings of the run are not readable"):
        from_toml(text)
