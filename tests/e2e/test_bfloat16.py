"""A model of bfloat16 alone, from the script to the final file: what one worker trains is what plain PyTorch trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launch import environment, paceline_run

SCRIPT = """
import sys
import torch, paceline
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
run = paceline.init()
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1)).to(torch.bfloat16)
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x.bfloat16(), y.bfloat16()), batch_size=16)
model, opt, loader = run.prepare(model, opt, loader)
for epoch in run.epochs(4):
    for a, b in loader:
        opt.zero_grad()
        loss = (model(a) - b).square().mean()
        loss.backward()
        run.clip_grad_norm_(8.0)
        opt.step()
    run.pull()
    model.eval()
    with torch.no_grad():
        run.log(mse=(model(x.bfloat16()).float() - y).square().mean())
    model.train()
saved = model.state_dict()
if len(sys.argv) > 1:
    torch.save(saved, sys.argv[1])
model.load_state_dict(saved)
opt.load_state_dict(opt.state_dict())
"""


@pytest.mark.parametrize(("workers", "pace"), [(1, "sync"), pytest.param(2, "sync", marks=pytest.mark.slow), (2, "async")])
def test_bfloat16_trains_as_in_plain_torch(tmp_path: Path, workers: int, pace: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = paceline_run(script, out=tmp_path / "run", workers=workers, servers=2, pace=pace)
    assert done.returncode == 0, done.stderr + done.stdout
    final = load_file(tmp_path / "run" / "final.safetensors")
    assert {values.dtype for name, values in final.items() if name != "1.num_batches_tracked"} == {torch.bfloat16}
    if workers == 1:
        command = [sys.executable, str(script), str(tmp_path / "plain.pt")]
        subprocess.run(command, env=environment(), timeout=60, check=True, capture_output=True)
        for name, values in torch.load(tmp_path / "plain.pt").items():
            torch.testing.assert_close(final[name], values, rtol=0.05, atol=0.02)
    mse = float(done.stdout.split("mse ")[-1].split()[0])
    assert mse < 2.0, "the mean square of what is to be learnt is 8"
