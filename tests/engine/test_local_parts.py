"""The parts of the local engine that need no processes: the final model's file, outputs, blame, lines on the console."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from paceline.engine.local import output as output_module
from paceline.engine.local.blame import DIED, LATE, LEFT_ALONE, REPORTED, Failure, cause_of, failed_of, failure_of
from paceline.engine.local.child import await_listening
from paceline.engine.local.console import PLAIN_EVERY_S, Screen, progress_text
from paceline.engine.local.final import write_final
from paceline.engine.local.output import Output
from paceline.engine.local.results import result_lines
from paceline.engine.local.run_dir import settle_summary
from paceline.engine.local.worker_main import run_script
from paceline.errors import ConfigError, DeadlineError, UsageError, WriteError
from paceline.logic.partition import layout_of, parameter_arena_bytes
from paceline.messages import SUPERVISOR, Address, Failed, Listening, Message, ModelSpec, Progress, Remark, TensorSpec
from paceline.transport.connection import pair
from paceline.transport.shm import SocketPort

WORKER = Address("worker", 2)


def _model(*parameters: TensorSpec, buffers: tuple[TensorSpec, ...] = ()) -> ModelSpec:
    return ModelSpec(parameters, buffers, "torch.optim.SGD", msgspec.msgpack.encode([{}]), b"", True, True)


# --- final.safetensors -----------------------------------------------------------------------------------


def test_the_final_model_is_what_the_arena_holds_under_its_names(tmp_path: Path) -> None:
    model = _model(
        TensorSpec("a.weight", (3, 5), "float32", 0, aliases=("tied.weight",)),
        TensorSpec("half", (7,), "bfloat16", 0),
        TensorSpec("frozen", (), "float64"),
        TensorSpec("none", (0, 4), "float32", 0),
        buffers=(TensorSpec("count", (), "int64"), TensorSpec("mask", (3,), "bool"), TensorSpec("scratch", (9,), "float32", saved=False)),
    )
    layout = layout_of(model)
    buffers_start, size = parameter_arena_bytes(layout)
    arena = torch.randint(0, 2, (size,), dtype=torch.uint8)
    write_final(tmp_path, model, memoryview(arena.numpy()))
    final = load_file(tmp_path / "final.safetensors")
    assert set(final) == {"a.weight", "tied.weight", "half", "frozen", "none", "count", "mask"}
    for slots, offset in ((layout.slots, 0), (layout.buffers, buffers_start)):
        for slot in slots:
            for name in (slot.spec.name, *slot.spec.aliases) if slot.spec.saved else ():
                expected = arena[offset + slot.start : offset + slot.stop].clone().view(getattr(torch, slot.spec.dtype))
                assert torch.equal(final[name], expected.view(slot.spec.shape))


def test_a_final_model_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    model = _model(TensorSpec("a", (3,), "float32", 0))
    with pytest.raises(WriteError, match=r"final\.safetensors could not be written: No such file"):
        write_final(tmp_path / "none", model, memoryview(bytes(4096)))
    (tmp_path / "final.safetensors").mkdir()
    with pytest.raises(WriteError, match="Is a directory"):
        write_final(tmp_path, model, memoryview(bytes(4096)))
    assert [path.name for path in tmp_path.iterdir()] == ["final.safetensors"]


# --- outputs ---------------------------------------------------------------------------------------------


class Piped:
    """An Output whose pipe the test writes to."""

    def __init__(self, path: Path) -> None:
        reader, self.writer = os.pipe()
        self.output = Output(reader, path)

    def says(self, data: bytes) -> list[str]:
        os.write(self.writer, data)
        return self.output.read()


def test_output_comes_as_whole_lines_and_goes_into_the_log_as_it_is(tmp_path: Path) -> None:
    piped = Piped(tmp_path / "log")
    assert piped.says(b"one\ntw") == ["one"]
    assert piped.says(b"o\r 50%\r100%\r\n\xff") == ["two", " 50%", "100%"]
    assert piped.output.read() == []
    assert piped.output.dry
    os.close(piped.writer)
    assert piped.output.read() == ["�"]
    assert piped.output.ended
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\r 50%\r100%\r\n\xff"
    piped.output.close()


def test_a_line_and_a_log_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(output_module, "MAX_LOG_BYTES", 15)
    piped = Piped(tmp_path / "log")
    assert piped.says(b"x" * 12) == ["x" * 12]
    assert piped.says(b"y" * 12) == ["y" * 12]
    assert piped.says(b"z\n") == ["z"]
    assert (tmp_path / "log").read_bytes() == b"x" * 12 + b"yyy\n(this log is full)\n"


def test_a_log_on_a_full_disk_fails_once_and_lines_go_on() -> None:
    piped = Piped(Path("/dev/full"))
    os.write(piped.writer, b"a line\n")
    with pytest.raises(WriteError, match="/dev/full could not be written: No space left on device"):
        piped.output.read()
    assert piped.says(b"another\n") == ["another"]


# --- a child that has just started ------------------------------------------------------------------------


def test_a_child_that_does_not_come_to_listen_says_why(tmp_path: Path) -> None:
    piped = Piped(tmp_path / "log")

    def told(*messages: Message, ends: bool) -> Listening:
        ours, theirs = pair()
        parent, child = SocketPort(SUPERVISOR), SocketPort(WORKER)
        parent.adopt(WORKER, ours)
        child.adopt(SUPERVISOR, theirs)
        for message in messages:
            child.send(SUPERVISOR, message)
        if ends:
            child.close()
        try:
            return await_listening(parent, WORKER, piped.output, timeout_s=0.1)
        finally:
            child.close()
            parent.close()

    assert told(Remark("soon"), Listening("::1", 7), ends=False) == Listening("::1", 7)
    with pytest.raises(ConfigError, match=r"^port 7 is in use$"):
        told(Failed(2, "port 7 is in use"), ends=True)
    with pytest.raises(ConfigError, match=r"^worker 2 ended as it began, and printed nothing$"):
        told(ends=True)
    os.write(piped.writer, b"Traceback\n  File x\n    import y\n\nModuleNotFoundError: y\n")
    with pytest.raises(ConfigError, match=r"^worker 2 ended as it began, and printed last: File x \| import y \| ModuleNotFoundError: y$"):
        told(ends=True)
    assert (tmp_path / "log").read_bytes().endswith(b"ModuleNotFoundError: y\n")
    with pytest.raises(DeadlineError, match=r"^worker 2 did not listen within 0\.1 s$"):
        told(Remark("soon"), ends=False)


# --- blame -----------------------------------------------------------------------------------------------


def _error(source: str, path: Path, kind: type[Exception]) -> BaseException:
    path.write_text(source)
    with pytest.raises(kind) as raised:
        exec(compile(source, str(path), "exec"), {})
    return raised.value


def test_a_traceback_is_the_scripts_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    source = "import torch\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    torch.zeros(2) @ torch.zeros(3)\n"
    failed = failed_of(_error(source, path, RuntimeError), WORKER, str(path))
    assert failed.code == 1
    assert failed.sentence.startswith(f"worker 2: {path} raised RuntimeError: ")
    assert "During handling of the above exception" in failed.text
    assert "1 / 0" in failed.text


def test_a_syntax_error_is_shown_without_the_frames_of_who_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", [*sys.path])
    path = tmp_path / "train.py"
    path.write_text("x = = 1\n")
    with pytest.raises(SyntaxError) as raised:
        run_script(str(path), ())
    failed = failed_of(raised.value, WORKER, str(path))
    assert failed.sentence == f"worker 2: {path} raised SyntaxError: invalid syntax"
    assert "x = = 1" in failed.text
    assert "worker_main.py" not in failed.text
    assert "runpy" not in failed.text


def test_the_sentence_has_the_first_line_of_a_long_error(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    failed = failed_of(_error("raise KeyError('missing')", path, KeyError), WORKER, str(path))
    assert failed.sentence == f"worker 2: {path} raised KeyError: 'missing'"
    failed = failed_of(_error("raise RuntimeError('bad state:\\n  a.weight')", path, RuntimeError), WORKER, str(path))
    assert failed.sentence == f"worker 2: {path} raised RuntimeError: bad state:"
    assert "a.weight" in failed.text
    failed = failed_of(_error("raise RuntimeError('x' * 100_000)", path, RuntimeError), WORKER, str(path))
    assert len(failed.sentence) < 600


def test_a_mistake_of_the_user_is_a_sentence_with_the_line_of_the_script(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    source = "from paceline.pace import parse_pace\nfrom paceline.logic.partition import layout_of\n\nparse_pace('sink')\n"
    failed = failed_of(_error(source, path, ConfigError), WORKER, str(path))
    assert (failed.code, failed.text) == (2, "")
    assert failed.sentence.startswith("worker 2: unknown pace 'sink'")
    assert failed.sentence.endswith(f"({path}, line 4: parse_pace('sink'))")
    assert failed_of(UsageError("nowhere"), WORKER, "train.py").sentence == "worker 2: nowhere"
    assert failed_of(UsageError("worker 2 waited"), WORKER, "train.py").sentence == "worker 2 waited"


def test_the_cause_is_not_what_followed_from_it() -> None:
    lost, died = Failure(LEFT_ALONE, 4, "lost the coordinator"), Failure(DIED, 4, "was killed")
    late, raised = Failure(LATE, 5, "waited"), Failure(REPORTED, 1, "raised", "Traceback")
    passed_on = Failure(REPORTED, 1, "raised")
    assert cause_of([lost, died]) == died
    assert cause_of([lost, died, late]) == late
    assert cause_of([lost, passed_on, late, raised]) == raised
    assert cause_of([]) is None
    assert [failure_of(Failed(code, "")).rank for code in (1, 3, 4, 5)] == [REPORTED, REPORTED, LEFT_ALONE, LATE]


# --- what is shown ---------------------------------------------------------------------------------------


def test_the_progress_line_says_what_goes_on() -> None:
    progress = Progress("ssp:3", 40, 5000, 2, 1000, 4000, 0.51234, 1.25, 4, (), True)
    assert progress_text(progress, 812.4, 4) == "ssp:3 · epoch 2 · 1,000 of 4,000 samples · loss 0.5123 · 812 samples/s · staleness 1.25"
    waiting = msgspec.structs.replace(progress, waiting_for=(1, 2, 3, 4, 5, 6), epoch_samples=0, loss=None)
    assert (
        progress_text(waiting, 0, 9)
        == "ssp:3 · epoch 2 · 5,000 samples · 0 samples/s · staleness 1.25 · waits for worker 1, 2, 3, 4 and 2 more"
    )
    shared = msgspec.structs.replace(progress, pace="sync", loss=None, shares=((0, 0.3), (1, 0.3), (3, 0.15)))
    assert progress_text(shared, 5, 3) == "sync · epoch 2 · 1,000 of 4,000 samples · 5 samples/s · staleness 1.25 · shares 40 40 20 %"
    assert progress_text(msgspec.structs.replace(progress, begun=False), 0, 6) == "starting: 4 of 6 workers are there"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_state_is_one_line_redrawn_on_a_terminal_and_plain_lines_elsewhere(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "01"[is_terminal])
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen(2)
    for tick in range(1, 20):
        progress = Progress("sync", tick, 32 * tick, 0, 32 * tick, 4000, 0.5, 0.0, 2, (), True)
        screen.progress(progress, tick * PLAIN_EVERY_S / 10)
    screen.line("[0] a line of the script")
    screen.clear()
    shown = capsys.readouterr().out
    states = shown.count("sync · epoch 0 · ")
    if is_terminal:
        assert states >= 19
        assert "\x1b[2K" in shown  # each takes the place of the one before, and at the end nothing stays
        assert shown.rstrip().endswith("\x1b[2K")
    else:
        assert shown == (
            "sync · epoch 0 · 32 of 4,000 samples · loss 0.5 · 0 samples/s · staleness 0.00\n"
            "sync · epoch 0 · 352 of 4,000 samples · loss 0.5 · 64 samples/s · staleness 0.00\n"
            "[0] a line of the script\n"
        )


def test_the_last_lines_say_what_came_of_it() -> None:
    ledger = {"once": 90, "repeated": 0, "skipped": 10, "undone": 0}
    summary = {"updates": 1200, "samples": 2400, "wall_s": 2.0, "start_s": 1.5, "ledger": ledger, "final": {"loss": 0.25, "nan": None}}
    assert result_lines(summary) == [
        "1,200 updates of 2,400 samples in 2.0 s (1,200 samples/s), started in 1.5 s",
        "ledger: 90 samples once, 10 skipped",
        "final: loss 0.25",
    ]
    moved = {**summary, "paces": {"sync": 1200, "async": 1200}, "moves": 3, "final": {}}
    assert result_lines(moved)[2] == "paces: sync 50 %, async 50 % of the samples, 3 changes; `paceline why` and the run directory tell why"
    assert len(result_lines({**moved, "moves": 0})) == 2
    assert result_lines({"updates": 0}) == ["no update was made"]
    virtual = {**summary, "virtual_s": 1.0, "ledger": None, "final": {}}
    assert result_lines(virtual) == ["1,200 updates of 2,400 samples in 1.0 virtual s (2,400 samples/s), played in 2.0 s"]


def test_a_summary_always_tells_the_exit_code(tmp_path: Path) -> None:
    assert settle_summary(tmp_path, {"updates": 3}, 4) == {"updates": 3, "exit": 4}
    assert settle_summary(tmp_path, {"updates": 0}, 130) == {"updates": 3, "exit": 130}
    with pytest.raises(WriteError, match=r"summary\.json"):
        settle_summary(tmp_path / "none", {}, 0)


def test_an_unreadable_summary_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{")
    assert settle_summary(tmp_path, {"updates": 3}, 1) == {"updates": 3, "exit": 1}
