"""A run that moved its own pace: the band, the reasons, what was predicted and came, and each worker's part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.dash.compare import compare_page
from paceline.dash.report import write_report
from report_pages import HYBRID, Move, read_page, write_hybrid, write_run


def test_every_move_is_a_row_with_its_reason_and_what_came_of_it(tmp_path: Path) -> None:
    page = read_page(write_report(write_hybrid(tmp_path)))
    for told in ("Changes of pace", "33 %", "3,000", "2,400", "restored, 640 samples undone", "2 paces weighed", "0.970"):
        assert told in page.text
    assert all(move.why in page.text for move in HYBRID)
    assert "The policy goodput was asked 3 times, the pace changed 3 times." in page.text
    assert "One decision was held back, lately: the dwell has 20 updates left." in page.text
    assert "What came differed from 2 predictions by 25 % (median)." in page.text
    assert "sync → async → sync → backup:1" in page.text
    assert "hybrid" in page.text


def test_the_band_over_the_loss_says_why_each_stretch_began(tmp_path: Path) -> None:
    page = read_page(write_report(write_hybrid(tmp_path)))
    stripes = [attributes for tag, attributes in page.elements if tag == "span" and attributes.get("data-why")]
    assert [one["data-pace"] for one in stripes[:4]] == ["sync", "async", "sync", "backup:1"]
    assert [one["data-why"] for one in stripes[:4]] == ["0", "1", "2", "3"]
    assert json.loads(page.data["reasons"]) == ["", *(move.why for move in HYBRID)]
    assert len(page.of_class("band")) % 4 == 0
    assert page.of_class("restored")


def test_each_workers_part_and_bound_are_drawn_when_they_changed(tmp_path: Path) -> None:
    page = read_page(write_report(write_hybrid(tmp_path / "a")))
    assert "Batch shares over time" in page.text
    assert "Lead bounds over time" in page.text
    unmoved = read_page(write_report(write_hybrid(tmp_path / "b", parts=False)))
    assert "over time" not in unmoved.text


def test_parts_that_change_all_the_time_are_thinned_and_those_that_moved_furthest_are_drawn(tmp_path: Path) -> None:
    run_dir = write_hybrid(tmp_path, parts=False)
    with (run_dir / "events.jsonl").open("a") as file:
        for turn in range(3000):
            parts = {str(worker): (worker + turn % 7) / 1000 for worker in range(30)}
            file.write(json.dumps({"event": "shares", "t_s": 2 + turn / 1000, "parts": parts}) + "\n")
    path = write_report(run_dir)
    assert path.stat().st_size < 500_000
    page = read_page(path)
    assert "the 6 of 30 workers that moved furthest" in page.text
    assert [f"worker {worker}\n" in page.text for worker in (0, 5, 6, 29)] == [True, True, False, False]


def test_a_run_without_decisions_is_shown_as_ever(tmp_path: Path) -> None:
    run_dir = write_hybrid(tmp_path)
    (run_dir / "decisions.jsonl").unlink()
    page = read_page(write_report(run_dir))
    assert all(move.why in page.text for move in HYBRID)
    assert "predicted" not in page.text.replace("is predicted to train", "")


def test_a_policy_that_moved_nothing_has_its_last_word(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, pace="sync")
    rows = ({"event": "decision", "policy": "hybrid", "moved": False, "held": "", "why": f"sync stays: {number}"} for number in (1, 2))
    (run_dir / "decisions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = read_page(write_report(run_dir))
    assert "The policy hybrid was asked 2 times, the pace never changed. It said last: sync stays: 2." in page.text


def test_a_decision_that_no_event_followed_is_given_to_no_other_move(tmp_path: Path) -> None:
    run_dir = write_hybrid(tmp_path, HYBRID[:1])
    events = (run_dir / "events.jsonl").read_text().replace('"from":"sync","to":"async"', '"from":"sync","to":"ssp:3"')
    (run_dir / "events.jsonl").write_text(events)
    assert "paces weighed" not in read_page(write_report(run_dir)).text


def test_thousands_of_moves_make_a_page_below_a_megabyte_with_bands_that_cover_the_run(tmp_path: Path) -> None:
    moves = [Move(version, *(("sync", "async") if version % 2 else ("async", "sync")), f"reason {version}") for version in range(1, 4001)]
    path = write_report(write_hybrid(tmp_path, moves, num_updates=4100))
    assert path.stat().st_size < 1_000_000
    page = read_page(path)
    assert "The first 100 of 4,000; all of them are in events.jsonl." in page.text
    assert "changes of pace within this part" in page.data["reasons"]
    widths = [float(one["width"] or 0) for one in page.of_class("band") if "width" in one][: len(json.loads(page.data["reasons"]))]
    assert sum(widths) == pytest.approx(1000 / 1.015, abs=5)


def test_a_comparison_shows_the_paces_of_a_run_that_moved_in_the_colours_of_the_runs_that_kept_to_them(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "sync", pace="sync"), write_run(tmp_path / "async"), write_hybrid(tmp_path / "hybrid")]
    page = read_page(compare_page(runs, tmp_path / "compare.html", "three"))
    stripes = [attributes for tag, attributes in page.elements if tag == "span" and attributes.get("data-why")]
    assert [(one["data-pace"], one["class"]) for one in stripes[:4]] == [
        ("sync", "c0"),
        ("async", "c1"),
        ("sync", "c0"),
        ("backup:1", "c3"),
    ]
    assert "Changes of pace: hybrid" in page.text
    assert not page.of_class("band")
