"""A minute of coverage-guided fuzzing for each decoder of a network's bytes: our errors only, bounded memory, lines reached."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from launch import SCRIPTS, environment

FUZZ_S = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("atheris") is None, reason="needs atheris: pip install 'paceline[fuzz]'"),
]


def fuzz(command: str, target: str, corpus: Path, *options: str) -> str:
    """Run the fuzzer to its end, and return what it says."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "fuzz_wire.py"), command, target, str(corpus), *options],
        capture_output=True,
        text=True,
        timeout=FUZZ_S + 60,
        env=environment(),
        check=False,
        cwd=corpus.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(3 * FUZZ_S)
@pytest.mark.parametrize("target", ["frames", "messages", "handshake", "tensors"])
def test_a_minute_of_mutations_raises_only_errors_of_ours(target: str, tmp_path: Path) -> None:
    corpus = tmp_path / target
    fuzz("fuzz", target, corpus, f"-max_total_time={FUZZ_S}", "-rss_limit_mb=512", "-malloc_limit_mb=128", "-timeout=5", "-seed=1")
    told = fuzz("cover", target, corpus).splitlines()[-1]
    print(told)
    share = float(told.partition(" reach ")[2].partition("%")[0])
    assert share >= 95.0, told
