"""Hosts that are not as they should be: of another version, without the key, without IPv4, without a common file system."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from netns import namespaces
from paceline.trace.record import read_summary
from paceline.transport.keys import write_key_file
from ranks import SCRIPT, Ranks

HERE = socket.gethostname()
OTHER_TORCH = """
import os, torch, paceline
if os.environ["RANK"] == "1":
    torch.__version__ = "2.0.1"
paceline.init()
"""

Launched = Callable[..., Ranks]


@pytest.mark.slow
def test_a_host_with_another_torch_is_named_on_every_host(launched: Launched, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OTHER_TORCH)
    ranks = launched(size=2, on_each=1, script=script)
    assert ranks.codes() == [2, 2], ranks.printed(0)
    for rank in range(2):
        assert f"paceline: rank 1 on {HERE} has torch 2.0.1, and rank 0 on {HERE} has " in ranks.printed(rank)
        assert "Traceback" not in ranks.printed(rank)
    assert not ranks.out.exists()


def test_half_the_hosts_without_the_key_are_named_on_every_host(launched: Launched, tmp_path: Path) -> None:
    key = tmp_path / "job.key"
    write_key_file(key)
    with namespaces() as hosts:
        ranks = launched("plain", "0", size=2, on_each=1, hosts=hosts, own=[{"PACELINE_KEY_FILE": str(key)}, {}])
        assert ranks.codes() == [2, 2], ranks.printed(0)
    told = f"{hosts[1].address} is not a loopback address, so a key is needed"
    assert f"paceline: {told}" in ranks.printed(1)
    assert f"paceline: rank 1 on {HERE}: {told}" in ranks.printed(0)


def test_hosts_without_ipv4_and_without_a_common_file_system_train(launched: Launched, tmp_path: Path) -> None:
    key = tmp_path / "job.key"
    write_key_file(key)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        shutil.copy(SCRIPT, folder / "train.py")
    with namespaces(ipv6_only=True) as hosts:
        options = {"key_file": str(key), "servers": "2", "own": [{"PACELINE_OUT": "runs/first"}] * 2, "folders": folders}
        ranks = launched("plain", "0", size=2, on_each=1, hosts=hosts, script=Path("train.py"), **options)
        assert ranks.codes() == [0, 0], ranks.printed(0) + ranks.printed(1)
    assert read_summary(folders[0] / "runs" / "first")["ledger"] == {"once": 800, "repeated": 0, "skipped": 0, "undone": 0}
    left = sorted(str(path.relative_to(folders[1])) for path in folders[1].rglob("*") if path.is_file())
    assert left == ["runs/first/logs/server-1.log", "train.py"]
