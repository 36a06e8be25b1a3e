"""The report page: complete, of bounded size, harmless whatever the names in it, for every way a run can end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline.dash.report import write_report
from paceline.errors import ConfigError, WriteError
from paceline.trace.record import RunRecord, read_summary, write_summary
from report_pages import BATCH, Move, Page, read_page, write_hybrid, write_run, write_updates


def test_a_finished_run_is_told_in_headline_figures_and_curves(tmp_path: Path) -> None:
    page = read_page(write_report(write_run(tmp_path / "run")))
    for told in ("train.py", "Finished.", "4 workers, 2 servers", "0.975", "9,600", "wall time (s)", "samples/s", "command line"):
        assert told in page.text
    assert "Every sample was in exactly one applied gradient of its epoch: 9,600 of 9,600." in page.text
    lines = page.paths("line")
    assert len(lines) == 2 * 3
    assert all(line.count("L") >= 5 for line in lines)
    assert len(page.of_class("row")) == 4
    assert "staleness 3: 75 gradients, 25 %" in {attributes.get("data-tip") for _, attributes in page.elements}


def test_the_times_of_a_virtual_run_are_called_so(tmp_path: Path) -> None:
    run_dir = write_hybrid(tmp_path / "run")
    assert "virtual time" not in read_page(write_report(run_dir)).text
    write_summary(run_dir, {**read_summary(run_dir), "virtual_s": 20.0})
    page = read_page(write_report(run_dir)).text
    assert "wall time" not in page
    assert "virtual time (s)" in page
    assert page.count("virtual time\n") == 3  # headline, switch, head of the changes of pace


def test_a_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    document = write_report(write_run(tmp_path)).read_text()
    policies = [attributes.get("content") or "" for _, attributes in Page(document).elements if "http-equiv" in attributes]
    assert [policy.startswith("default-src 'none'; ") for policy in policies] == [True]
    assert "http:" not in document
    assert "https:" not in document
    assert "url(" not in document
    assert not re.search(r"\bsrc=|\bhref=|@import", document)


def test_no_name_can_become_a_tag_or_end_the_data(tmp_path: Path) -> None:
    attack = "</script><script>alert(1)</script><img/onerror=alert(2)>"
    record = RunRecord(tmp_path, 0.0)
    record.note({"event": "join", "role": "worker", "id": 0, "pid": 1, "host": attack}, 0.0)
    record.note({"event": "lease", "worker": 0, "positions": [0]}, 0.0)
    for version in range(1, 9):
        record.note(
            {"event": "update", "version": version, "samples": version, "pace": attack, "members": [{"worker": 0, "staleness": 0}]},
            float(version),
        )
        record.metrics(0, {attack: float(version)}, epoch=0, samples=version, weight=1, now_s=float(version))
    record.note({"event": "refuse", "worker": 0, "step": 1, "reason": attack}, 4.0)
    record.note({"event": "leave", "role": "worker", "id": 0, "reason": attack}, 5.0)
    record.note({"event": "end", "code": 1, "sentence": attack}, 9.0)
    record.close({"pace": attack, "exit": 1, "final": {attack: 1.0}})
    (tmp_path / "run.toml").write_text(f"pace = '{attack}'\n[run]\nscript = '{attack}'\n")
    document = write_report(tmp_path).read_text()
    page = Page(document)
    assert "img" not in {tag for tag, _ in page.elements}
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert [one for one in scripts if one.get("type") != "application/json"] == [{}]
    assert page.text.count(attack) >= 5
    assert "<img" not in document


def test_a_change_of_pace_and_a_death_are_marked_on_the_curves_and_told(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, 0.0)
    record.note({"event": "join", "role": "worker", "id": 2, "pid": 1, "host": "here"}, 1.0)
    record.note({"event": "lease", "worker": 0, "positions": [0]}, 2.0)
    now_s = write_updates(
        record, 200, 3, "sync", [Move(80, "sync", "ssp:3", "the straggler ratio is 3.1"), Move(150, "ssp:3", "sync", "it fell")]
    )
    record.note({"event": "leave", "role": "worker", "id": 2, "reason": "killed by signal 9"}, 3.0)
    record.close({"pace": "sync", "wall_s": now_s - 2.0, "samples": 200 * BATCH, "exit": 0})
    page = read_page(write_report(tmp_path))
    assert "sync → ssp:3 → sync" in page.text
    assert "the straggler ratio is 3.1" in page.text
    assert len(page.of_class("band")) == 3 * 2 * 3
    assert "1.0 s: worker 2 left: killed by signal 9" in page.text
    assert len(page.of_class("mark")) == 2 * 3


def test_a_failed_run_says_so_first(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, 0.0)
    record.note({"event": "end", "code": 4, "sentence": "server 1 was lost"}, 1.0)
    record.close({"exit": 4})
    page = read_page(write_report(tmp_path))
    for told in (
        "Failed with exit code 4.",
        "server 1 was lost",
        "The script logged nothing",
        "No worker took a step.",
        "No sample was folded.",
    ):
        assert told in page.text


@pytest.mark.parametrize(("code", "told"), [(130, "Interrupted."), (143, "Terminated.")])
def test_a_run_that_was_stopped_has_not_failed(tmp_path: Path, code: int, told: str) -> None:
    page = read_page(write_report(write_run(tmp_path, exit=code)))
    assert told in page.text
    assert "Failed" not in page.text
    assert page.of_class("open")


def test_a_loaded_state_is_a_version_and_no_update(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, 0.0)
    record.note({"event": "load", "version": 1, "worker": 0}, 1.0)
    for version in (2, 3):
        record.note({"event": "update", "version": version, "samples": 32 * version, "pace": "sync", "members": []}, 1.0 + version)
    record.close({"exit": 0, "updates": 3})
    assert "updates\n2\n" in read_page(write_report(tmp_path)).text


@pytest.mark.parametrize("members", [5, [1, {"worker": [2], "staleness": "x"}], {"worker": 0}])
def test_members_of_another_shape_are_no_failure(tmp_path: Path, members: object) -> None:
    record = RunRecord(tmp_path, 0.0)
    record.note({"event": "update", "version": 1, "samples": 32, "pace": "sync", "members": members}, 1.0)
    record.decide({"event": "decision", "moved": True, "next": "async", "samples": 32, "candidates": members}, 1.0)
    record.note({"event": "pace", "from": "sync", "to": "async", "samples": 32, "why": "so"}, 1.0)
    record.close({"exit": 0})
    assert "updates\n1\n" in read_page(write_report(tmp_path)).text


def test_who_never_left_was_there_until_the_end(tmp_path: Path) -> None:
    page = read_page(write_report(write_run(tmp_path / "ended")))
    assert page.text.count("at the end of the run") == 4
    record = RunRecord(tmp_path / "open", 0.0)
    record.note({"event": "join", "role": "server", "id": 0, "pid": 1, "host": "here"}, 0.0)
    record.flush()
    assert "not recorded" in read_page(write_report(tmp_path / "open")).text


def test_the_labels_of_tiny_values_have_room(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, 0.0)
    for version in range(9):
        record.metrics(0, {"lr": 1.2345e-7 * (1 + version / 1000)}, epoch=0, samples=version, weight=1, now_s=float(version))
    record.close({"exit": 0})
    document = write_report(tmp_path).read_text()
    assert re.search(r">1\.23\de-7<", document)
    assert 'style="--labels:66px"' in document


def test_a_run_that_was_killed_is_reported_from_what_it_left(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, 0.0)
    write_updates(record, 100, 2, "async")
    record.flush()
    path = tmp_path / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    page = read_page(write_report(tmp_path))
    assert "No end recorded." in page.text
    assert "3,168" in page.text
    assert "no verdict" in page.text
    assert "50 steps" in page.text


@pytest.mark.parametrize(
    ("ledger", "told"),
    [
        ((90, 4, 6, 0), "Of 100 samples, counted anew in each epoch, 90 were in exactly one applied gradient, 4 in more than one"),
        ((90, 4, 6, 0), "applied gradient, 6 in none."),
        ((10, 0, 0, 2), "10 were in exactly one applied gradient, 2 folded and then undone."),
    ],
)
def test_a_ledger_that_is_not_clean_is_told_in_numbers(tmp_path: Path, ledger: tuple[int, ...], told: str) -> None:
    counts = dict(zip(("once", "repeated", "skipped", "undone"), ledger, strict=True))
    assert told in read_page(write_report(write_run(tmp_path, ledger=counts))).text


def test_values_that_are_not_finite_are_counted_and_break_nothing(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, 0.0)
    for version in range(20):
        values = {"loss": float("nan") if version % 2 else 1.0, "never": float("inf"), "still": 3.0}
        record.metrics(0, values, epoch=0, samples=version, weight=0, now_s=float(version))
    record.close({"exit": 0, "final": {"loss": None, "still": 3.0}})
    page = read_page(write_report(tmp_path))
    assert "10 values not finite" in page.text
    assert "Without one finite value: never." in page.text
    assert not any("nan" in path for path in page.paths("line"))


def test_a_hundred_thousand_updates_of_many_workers_make_a_page_below_a_megabyte(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path, num_updates=100_000, num_workers=64))
    assert path.stat().st_size < 1_000_000
    assert len(read_page(path).of_class("row")) == 64


def test_very_many_workers_and_metrics_are_summed_up_not_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, num_workers=1000)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        for number in range(300):
            file.write(f'{{"worker":0,"t_s":3.0,"samples":64,"epoch":0,"weight":1,"m{number}":{number}}}\n')
    path = write_report(tmp_path)
    assert path.stat().st_size < 1_000_000
    page = read_page(path)
    assert "904 further workers" in page.text
    assert re.search(r"\d+ further metrics logged and not drawn", page.text)


def test_a_run_of_one_worker_and_one_update_has_a_page(tmp_path: Path) -> None:
    page = read_page(write_report(write_run(tmp_path, num_updates=1, num_workers=1)))
    assert "1 worker, 2 servers" in page.text
    assert page.paths("dots")


def test_a_report_is_made_anew_over_an_old_one(tmp_path: Path) -> None:
    write_report(write_run(tmp_path))
    write_summary(tmp_path, {"exit": 4})
    assert "Failed with exit code 4." in read_page(write_report(tmp_path)).text
    assert not list(tmp_path.glob(".report*"))


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the directory of a run"):
        write_report(tmp_path)


def test_a_page_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    (run_dir / "report.html").mkdir()
    with pytest.raises(WriteError, match=r"report\.html could not be written: Is a directory"):
        write_report(run_dir)
    assert not list(run_dir.glob(".report*"))
