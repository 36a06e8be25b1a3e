"""The pace: what each name stands for, what its keys change, and what is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.pace import ALL, Late, Pace, Quorum, Weighting, check_lr_rule, check_pace, pace_names, parse_pace

INVERSE, POLYNOMIAL = Weighting("inverse"), Weighting("polynomial", 1.0)

# The table of the design: quorum, distinct, late, max_lead, weighting.
NAMED = [
    ("sync", ALL, True, Late.DROP, None, Weighting()),
    ("backup:1", Quorum("minus", 1), True, Late.DROP, None, Weighting()),
    ("ksync:3", Quorum("count", 3), True, Late.DROP, None, Weighting()),
    ("kbatchsync:4", Quorum("count", 4), False, Late.DROP, None, Weighting()),
    ("kasync:2", Quorum("count", 2), True, Late.KEEP, None, Weighting()),
    ("kbatchasync:5", Quorum("count", 5), False, Late.KEEP, None, Weighting()),
    ("softsync:2", Quorum("part", 2), False, Late.KEEP, None, INVERSE),
    ("async", Quorum("count", 1), False, Late.KEEP, None, POLYNOMIAL),
    ("ssp:3", Quorum("count", 1), False, Late.KEEP, 3, Weighting()),
]


@pytest.mark.parametrize(("text", "quorum", "distinct", "late", "max_lead", "weighting"), NAMED, ids=[row[0] for row in NAMED])
def test_a_name_is_a_point_of_the_space(
    text: str, quorum: Quorum, distinct: bool, late: Late, max_lead: int | None, weighting: Weighting
) -> None:
    assert parse_pace(text) == Pace(text, quorum, distinct, late, max_lead, weighting=weighting)


def test_the_table_has_every_name() -> None:
    assert [shown.split(":")[0] for shown, _ in pace_names()] == [
        *("sync", "backup", "ksync", "kbatchsync", "kasync", "kbatchasync", "softsync", "async", "ssp")
    ]
    assert {text.split(":")[0] for text, *_ in NAMED} == {shown.split(":")[0] for shown, _ in pace_names()}


def test_only_a_pace_in_which_nobody_computes_at_an_update_reads_in_place() -> None:
    assert [text for text, *_ in NAMED if parse_pace(text).reads_in_place] == ["sync"]


@pytest.mark.parametrize(
    ("quorum", "of_one", "of_four", "of_seven"),
    [
        (ALL, 1, 4, 7),
        (Quorum("count", 3), 3, 3, 3),
        (Quorum("minus", 2), 1, 2, 5),
        (Quorum("part", 2), 1, 2, 3),
    ],
)
def test_a_quorum_follows_the_number_of_live_workers(quorum: Quorum, of_one: int, of_four: int, of_seven: int) -> None:
    assert (quorum.of(1), quorum.of(4), quorum.of(7)) == (of_one, of_four, of_seven)


def test_keys_change_one_field_each() -> None:
    pace = parse_pace("kasync:2, max_lead=5, max_staleness=8, grace_s=0.25, weighting=polynomial:0.5, lr_rule=none")
    assert (pace.max_lead, pace.max_staleness, pace.grace_s, pace.lr_rule) == (5, 8, 0.25, "none")
    assert pace.weighting == Weighting("polynomial", 0.5)
    assert parse_pace("ssp:3,max_lead=inf").max_lead is None


NAMES = st.sampled_from([text for text, *_ in NAMED])
KEYS = st.fixed_dictionaries(
    {},
    optional={
        "max_lead": st.integers(0, 10**6).map(str) | st.just("inf"),
        "max_staleness": st.integers(0, 10**6).map(str) | st.just("inf"),
        "grace_s": st.floats(0, 3600).map(repr),
        "weighting": st.sampled_from(["none", "inverse", "polynomial"]) | st.floats(0, 10).map(lambda a: f"polynomial:{a!r}"),
        "lr_rule": st.just("none"),
    },
)


@given(NAMES, KEYS)
def test_a_pace_is_what_its_name_says_and_survives_the_wire(name: str, keys: dict[str, str]) -> None:
    text = ",".join([name, *(f"{key}={value}" for key, value in keys.items())])
    pace = parse_pace(text)
    assert pace.name == text
    assert parse_pace(pace.name) == pace
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(pace), type=Pace) == pace
    for key in ("max_lead", "max_staleness", "grace_s"):
        if key in keys:
            assert getattr(pace, key) == (None if keys[key] == "inf" else float(keys[key]))


@given(st.text(max_size=30))
def test_any_text_is_a_pace_or_one_sentence(text: str) -> None:
    try:
        parse_pace(text)
    except ConfigError as error:
        assert "allowed" in str(error) or "must be" in str(error) or "is written" in str(error)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fast", "unknown pace 'fast', allowed: sync, backup:b, ksync:k"),
        ("", "unknown pace ''"),
        ("SYNC", "unknown pace 'SYNC'"),
        ("sync:3", "is written sync"),
        ("ssp", "is written ssp:s"),
        ("ssp:1:2", "is written ssp:s"),
        ("ssp:-1", "'-1' is not allowed, it must be a whole number from 0 to 1000000"),
        ("ssp:x", "'x' is not allowed, it must be a whole number from 0"),
        ("ssp:1_0", "'1_0' is not allowed"),
        ("ssp:1.5", "'1.5' is not allowed"),
        ("ksync:0", "'0' is not allowed, it must be a whole number from 1"),
        ("softsync:0", "'0' is not allowed, it must be a whole number from 1"),
        ("backup:-2", "'-2' is not allowed, it must be a whole number from 0"),
        ("kbatchsync:9999999", "'9999999' is not allowed"),
        ("ssp:3,max_lead", "'max_lead' is not KEY=VALUE, allowed keys: max_lead"),
        ("ssp:3,lead=2", "'lead' is not a key, allowed: max_lead, max_staleness, grace_s, weighting, lr_rule"),
        ("ssp:3,max_lead=1,max_lead=2", "max_lead is given twice, once is allowed"),
        ("async,max_staleness=-1", "'-1' is not allowed"),
        ("ksync:2,grace_s=nan", "'nan' is not allowed, it must be a number from 0 to 3600"),
        ("ksync:2,grace_s=-1", "'-1' is not allowed, it must be a number from 0 to 3600"),
        ("async,weighting=heavy", "weighting=heavy is not known, allowed: none, inverse, polynomial, polynomial:EXPONENT"),
        ("async,weighting=inverse:2", "weighting=inverse:2 is not known"),
        ("async,weighting=polynomial:11", "'11' is not allowed, it must be a number from 0 to 10"),
        ("async,weighting=polynomial:", "'' is not allowed, it must be a number from 0 to 10"),
        ("sync,lr_rule=cubic", "lr_rule=cubic is not known, allowed: linear, sqrt, none"),
        ("async,lr_rule=linear", "weighs gradients by staleness, so the learning rate rule must be none, got linear"),
    ],
)
def test_a_refusal_says_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_pace(text)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "num_workers", "says"),
    [
        ("ksync:5", 4, "needs 5 different workers for an update, with 4 it must be 1 to 4"),
        ("kasync:2", 1, "needs 2 different workers for an update, with 1 it must be 1 to 1"),
        ("softsync:5", 4, "splits 4 workers in 5 parts, it must be 1 to 4"),
        ("backup:4", 4, "leaves no worker to wait for, with 4 it must be 0 to 3"),
    ],
)
def test_a_pace_that_cannot_work_with_so_few_workers_is_refused(text: str, num_workers: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_pace(parse_pace(text), num_workers)


@pytest.mark.parametrize("text", [text for text, *_ in NAMED])
def test_every_named_pace_works_with_four_workers(text: str) -> None:
    assert check_pace(parse_pace(text), 4) == []


def test_counted_gradients_may_outnumber_the_workers() -> None:
    assert check_pace(parse_pace("kbatchsync:8"), 2) == []
    assert check_pace(parse_pace("kbatchasync:8"), 2) == []


@pytest.mark.parametrize(("bound", "warned"), [(2, True), (3, False)])
def test_a_bound_below_the_steady_staleness_is_warned_of(bound: int, warned: bool) -> None:
    warnings = check_pace(parse_pace(f"async,max_staleness={bound}"), 4)
    assert [("steady staleness of 4 equal workers" in warning) for warning in warnings] == [True] * warned


def test_two_scalings_by_staleness_are_refused() -> None:
    check_lr_rule(parse_pace("ssp:3"), "linear")
    check_lr_rule(parse_pace("softsync:2"), "none")
    with pytest.raises(ConfigError, match="softsync:2"):
        check_lr_rule(parse_pace("softsync:2"), "sqrt")
