"""benchmarks/gpu.py where there is no GPU: what it says, and that it goes through to its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from launch import environment

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu.py"


def run(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = run(timeout_s=60)
    assert done.returncode == 2
    assert done.stderr.startswith("benchmarks/gpu.py needs a CUDA device")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(620)
def test_rehearsed_on_the_cpu_every_check_is_right(tmp_path: Path) -> None:
    done = run("--rehearse", "--out", str(tmp_path / "gpu.json"), timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["failed"] == {}
    assert len(written["ms"]) == 6
