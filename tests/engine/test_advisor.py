"""A user's own policy: what it says is the answer, whatever goes wrong leaves the pace and is said once, nothing is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from paceline.engine.local import advisor as advisors
from paceline.engine.local.advisor import MOST_RESTARTS, Advisor, Answer
from paceline.hybrid import Hybrid, parse_mode
from paceline.logic.policies.policy import Move
from paceline.logic.signals import Signals, WorkerSignals
from paceline.messages import COORDINATOR
from paceline.pace import parse_pace
from paceline.roles.effects import Consult
from paceline.transport.shm import SocketPort

WITHIN_S = 20.0
WORKERS = tuple(WorkerSignals(number, 0.1, 0.0, 0.01, 32.0, 0.25, 0, 9, (0.1, 0.2)) for number in range(4))
SIGNALS = Signals("sync", 7, 224, 0.25, 21.0, 4, 4, WORKERS, loss=2.5)
MOVE = Move(3, 96, 0.1, "sync", "async", "because", loss=3.0)


class Asking:
    """An advisor of a policy given as text, and the loop that a coordinator is around it."""

    def __init__(self, run_dir: Path, text: str) -> None:
        (run_dir / "logs").mkdir(parents=True)
        self.file = run_dir / "mine.py"
        self.file.write_text(text)
        mode = parse_mode(f"hybrid:{self.file}:choose")
        assert isinstance(mode, Hybrid)
        self.port = SocketPort(COORDINATOR)
        self.advisor = Advisor(self.port, mode, run_dir, 4)
        self.log = run_dir / "logs" / "policy.log"

    def ask(self, number: int) -> Answer:
        """The answer to one question."""
        self.advisor.ask(Consult(number, SIGNALS, (MOVE,)), monotonic())
        return self.hear()

    def hear(self) -> Answer:
        """The next answer."""
        end_s = monotonic() + WITHIN_S
        while (now_s := monotonic()) < end_s:
            delivery = self.port.receive(max(0.0, min(self.advisor.deadline_s, end_s) - now_s))
            answer = self.advisor.heard(delivery.sender, delivery.message, monotonic()) if delivery else None
            answer = answer or self.advisor.expire(monotonic())
            if answer is not None:
                return answer
        raise AssertionError("no answer came")

    def close(self) -> None:
        """End the process; nothing of it may be left."""
        self.advisor.close()
        self.port.close()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and folder.name != str(os.getpid()):
                try:
                    command = (folder / "cmdline").read_bytes()
                except OSError:
                    continue
                assert str(self.file).encode() not in command


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Callable[[str], Asking]]:
    made: list[Asking] = []

    def make(text: str) -> Asking:
        made.append(Asking(tmp_path / f"run{len(made)}", text))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_policy_sees_signals_and_history_and_its_answer_comes_back(asking: Callable[[str], Asking]) -> None:
    text = """
import sys
from paceline import parse_pace
assert "torch" not in sys.modules
count = 0
def choose(signals, history):
    global count
    count += 1
    print("asked", count)
    loss = f"loss {signals.loss:g}, was {history[0].loss:g} at {history[0].after}, {len(signals.workers)} workers"
    return ["async", parse_pace("ksync:3"), None][count % 3], loss
"""
    policy = asking(text)
    why = "loss 2.5, was 3 at async, 4 workers"
    answers = [policy.ask(number) for number in (1, 2, 3)]
    assert answers == [Answer(1, parse_pace("ksync:3"), why), Answer(2, None, why), Answer(3, parse_pace("async"), why)]
    assert policy.advisor.remarks == []
    assert policy.log.read_text() == "asked 1\nasked 2\nasked 3\n"


def test_a_policy_that_flaps_is_obeyed(asking: Callable[[str], Asking]) -> None:
    policy = asking("def choose(signals, history, at=[0]):\n    at[0] += 1\n    return ('sync', 'async')[at[0] % 2], 'just so'\n")
    assert [str(policy.ask(number).pace) for number in range(6)] == ["async", "sync"] * 3


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return 1 / 0", "raised ZeroDivisionError: division by zero (line 2)"),
        ("raise SystemExit", "raised SystemExit (line 2)"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt (line 2)"),
        ("raise ValueError('half a \\ud800 and\\nmore')", r"raised ValueError: half a \ud800 and more (line 2)"),
        ("raise type('Mute', (Exception,), {'__str__': None})", "raised Mute (line 2)"),
        ("return 'async,' + ' ' * 9_999_999, ''", "chose a pace that cannot be: its name 'async, ... ' has 10,000,005 characters"),
        ("return 3", "returned 3, it must be a pair of a Pace, its name or None to stay, and a sentence"),
        ("return None", "returned None, it must be a pair"),
        ("return 'async'", "returned 'async', it must be a pair"),
        ("return 'async', 3", "returned ('async', 3), it must be a pair"),
        ("return 'warp:9', 'fast'", "chose a pace that cannot be: unknown pace 'warp:9', allowed: sync, "),
        ("return 'hybrid', 'more'", "chose a pace that cannot be: unknown pace 'hybrid', allowed: sync, "),
        (
            "return 'ksync:9', 'all'",
            "chose a pace that cannot be: pace 'ksync:9' needs 9 different workers for an update, with 4 it must be",
        ),
        ("import paceline; return paceline.Pace('x'), ''", "chose a pace that cannot be: unknown pace 'x'"),
        ("import paceline; return paceline.Pace('async'), ''", "chose a pace that cannot be: the Pace differs from what its name 'async'"),
    ],
)
def test_what_is_wrong_leaves_the_pace_and_is_said_once(body: str, error: str, asking: Callable[[str], Asking]) -> None:
    policy = asking(f"def choose(signals, history):\n    {body}\n")
    first, second = policy.ask(1), policy.ask(2)
    assert first.pace is None
    assert first.error.startswith(f"policy {policy.file}:choose {error}")
    assert second == first._replace(number=2)
    assert policy.advisor.remarks == [f"{first.error}; the pace stays as it is (said once, each time is in decisions.jsonl)"]


def test_a_reason_is_one_line_that_can_be_shown(asking: Callable[[str], Asking]) -> None:
    policy = asking("def choose(signals, history):\n    return 'async', 'a \\x1b[31mred\\n\\ud800 ' + 'reason' * 9_999_999\n")
    answer = policy.ask(1)
    assert str(answer.pace) == "async"
    assert answer.why.startswith(r"a \x1b[31mred \ud800 reasonreason")
    assert len(answer.why) < 2100


def test_each_kind_of_error_is_said(asking: Callable[[str], Asking]) -> None:
    policy = asking("def choose(signals, history, at=[0]):\n    at[0] += 1\n    return [7, 1 / (at[0] - 2), 'warp'][at[0] - 1], ''\n")
    errors = [policy.ask(number).error for number in (1, 2, 3)]
    assert [remark.partition(";")[0] for remark in policy.advisor.remarks] == errors


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import nothing_of_that_name\ndef choose(signals, history): ...", "could not be loaded: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)\nchoose = 1", "could not be loaded: SystemExit: 3 (line 1)"),
        ("choose = 3", "is no function but 3"),
    ],
)
def test_a_policy_that_cannot_be_loaded_is_asked_no_more(text: str, error: str, asking: Callable[[str], Asking]) -> None:
    policy = asking(text)
    answers = [policy.ask(number) for number in (1, 2)]
    assert [answer.number for answer in answers] == [1, 2]
    assert all(answer.error.startswith(f"policy {policy.file}:choose {error}") for answer in answers)
    assert len(policy.advisor.remarks) == 1


def test_a_policy_that_takes_too_long_is_begun_anew_and_at_last_given_up(
    asking: Callable[[str], Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advisors, "CALL_S", 0.2)
    policy = asking("import time\ndef choose(signals, history):\n    if signals.version: time.sleep(600)\n")
    answers = [policy.ask(number) for number in range(MOST_RESTARTS + 3)]
    late, last = answers[0].error, answers[-1].error
    assert [answer.error for answer in answers] == [late] * MOST_RESTARTS + [last] * 3
    assert late.endswith("took longer than 0.2 s to answer")
    assert last.endswith("took longer than 0.2 s to answer, and has been started 4 times")
    assert [remark.partition(";")[0] for remark in policy.advisor.remarks] == [late, last]
    # the ends of the killed processes are heard of, and change nothing
    while (delivery := policy.port.receive(0.2)) is not None:
        assert policy.advisor.heard(delivery.sender, delivery.message, monotonic()) is None
    assert policy.ask(9) == Answer(9, None, "", last)


def test_a_policy_that_recovers_goes_on(asking: Callable[[str], Asking], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    policy = asking(f"""
import os, pathlib
mark = pathlib.Path({str(mark)!r})
def choose(signals, history):
    if not mark.exists():
        mark.touch()
        os._exit(3)
    return "async", "well again"
""")
    assert policy.ask(1).error.endswith("choose ended its process")
    assert policy.ask(2) == Answer(2, parse_pace("async"), "well again")


def test_several_questions_are_answered_in_order(asking: Callable[[str], Asking]) -> None:
    policy = asking("def choose(signals, history):\n    return None, 'stay'\n")
    for number in (1, 2, 3):
        policy.advisor.ask(Consult(number, SIGNALS, ()), monotonic())
    assert [policy.hear().number for _ in range(3)] == [1, 2, 3]


def test_a_policy_may_import_what_lies_beside_it(asking: Callable[[str], Asking], tmp_path: Path) -> None:
    policy = asking("import beside\ndef choose(signals, history):\n    return beside.PACE, __name__\n")
    policy.file.with_name("beside.py").write_text("PACE = 'ssp:3'\n")
    assert policy.ask(1) == Answer(1, parse_pace("ssp:3"), "mine")
