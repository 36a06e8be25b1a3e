"""The comparison page: a line and a row for each run, told apart by pace."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.dash.compare import compare_page
from paceline.errors import ConfigError
from report_pages import read_page, write_run


def test_every_run_has_its_line_in_every_chart_and_its_row(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", pace="sync", wall_s=9.0),
        write_run(tmp_path / "b", pace="async", wall_s=3.0),
        write_run(tmp_path / "c", pace="async"),
    ]
    page = read_page(compare_page(runs, tmp_path / "compare.html", "One <straggler>"))
    for told in ("One <straggler>", "3 runs of train.py", "sync", "async (b)", "async (c)", "0.33", "0.975"):
        assert told in page.text
    lines = [attributes for attributes in page.of_class("line") if "d" in attributes]
    assert [attributes["class"] for attributes in lines] == ["line c0", "line c1", "line c2"] * 4
    assert page.text.count("Every sample was in exactly one applied gradient") == 3


def test_a_run_that_logged_nothing_stands_beside_one_that_did(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", pace="sync", num_updates=0, samples=0, wall_s=0.0, final={})]
    page = read_page(compare_page(runs, tmp_path / "compare.html", "two"))
    assert len([one for one in page.of_class("line") if "d" in one]) == 4


def test_a_comparison_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        compare_page([], tmp_path / "compare.html", "none")
