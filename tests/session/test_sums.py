"""A group's sums: buckets that leave during the backward pass, and what becomes of guesses that were wrong."""

from __future__ import annotations

from random import Random

import pytest
import torch

from crew import Crew, played
from paceline.logic.early import Early
from paceline.logic.partition import layout_of
from paceline.session import sums
from paceline.transport.collective import Group, GroupError

SEEDS = range(4)


@pytest.fixture(autouse=True)
def guesses_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever guesses goes on to do so."""
    monkeypatch.setattr(sums, "MOST_WRONG", 1000)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_update_is_the_same_to_the_bit_whether_buckets_left_early_or_not_or_were_summed_twice(seed: int) -> None:
    again: list[int] = []
    early = played(seed, 25, True, True, then=lambda crew: again.extend(mate.sums.num_again for mate in crew.mates))
    mixed = played(seed, 25, True, False)
    late = played(seed, 25, False, False)
    assert all(map(torch.equal, early, late))
    assert all(map(torch.equal, mixed, late))
    assert again[0] == again[1] > 0


@pytest.mark.parametrize("is_early", [True, False])
def test_a_tensor_that_lies_in_several_buckets_is_summed_as_a_whole_and_written_by_nobody_meanwhile(is_early: bool) -> None:
    crew = Crew(is_early, is_early, width=90_000)
    try:
        crew.play(1, 16, ("plain", "refused", "part", "idle", "data"))
    finally:
        crew.close()
    spans, slots = crew.mates[0].shard.spans, layout_of(crew.mates[0].replica._spec).slots
    assert any(sum(low < slot.stop and slot.start < high for low, high in spans) > 2 for slot in slots)


def test_shards_on_a_device_come_to_the_same_parameters() -> None:
    played(0, 10, True, False, device=torch.device("cpu"))  # a device that is the CPU: the shards are a copy all the same


def test_the_checks_notice_when_a_changed_gradient_does_not_spoil_the_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Early, "is_missed", property(lambda _: False, lambda *_: None), raising=False)
    with pytest.raises(AssertionError):
        [played(seed, 25, True, True) for seed in range(20)]


def test_the_checks_notice_when_a_refused_gradient_does_not_spoil_the_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sums.Sums.sum
    monkeypatch.setattr(sums.Sums, "sum", lambda self, own: real(self, self._guess or own))
    with pytest.raises(AssertionError):
        [played(seed, 25, True, True) for seed in range(20)]


def test_the_last_layers_gradient_is_on_its_way_before_the_first_layers_is_computed() -> None:
    crew = Crew(True, True)
    try:
        crew.play(0, 2, ("plain",))
        heard: list[str] = []
        mate = crew.mates[0]
        begin = mate.group.begin
        mate.group.begin = lambda part, **more: (heard.append("leaves"), begin(part, **more))[1]
        mate.model[1].register_full_backward_hook(lambda *_: heard.append("first layer is next"))
        crew.play(1, 1, ("plain",))
    finally:
        crew.close()
    assert len(mate.shard.spans) == 3
    assert heard == ["leaves", "leaves", "first layer is next", "leaves", "leaves"]  # three buckets, and behind them who guessed wrong
    assert [mate.sums.num_again for mate in crew.mates] == [0, 0]


def test_one_who_accumulates_learns_to_wait_for_the_last_backward_pass() -> None:
    crew = Crew(True, True)
    try:
        crew.play(0, 6, ("twice",))
    finally:
        crew.close()
    assert [(mate.sums.num_again, mate.sums.num_early) for mate in crew.mates] == [(0, 15), (0, 15)]


def test_who_guesses_wrong_again_and_again_stops_and_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sums, "MOST_WRONG", 3)
    crew = Crew(True, True)
    try:
        crew.play(0, 12, ("more",))
    finally:
        crew.close()
    assert [mate.sums.num_wrong for mate in crew.mates] == [3, 3]
    assert capfd.readouterr().err.count("paceline: sums begin at opt.step() from now on: 3 times a gradient was changed") == 2


def test_a_group_that_breaks_during_the_backward_pass_is_told_of_at_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew(True, True)
    try:
        crew.play(0, 2, ("plain",))
        with monkeypatch.context() as patch:
            patch.setattr(Group, "begin", lambda *_, **__: (_ for _ in ()).throw(GroupError("somebody is gone")))
            crew.mates[0].compute("plain", Random(0))
        with pytest.raises(GroupError, match="somebody is gone"):
            crew.mates[0].sums.sum(None)
    finally:
        crew.close()
