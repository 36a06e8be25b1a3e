"""A state that is loaded after `prepare` is the run's, whole: what is trained, what no optimizer holds, and the buffers."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from launch import paceline_run

SCRIPT = """
import torch, paceline
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
run = paceline.init()
model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
model[2].requires_grad_(False)
opt = torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.0)
loader = DataLoader(TensorDataset(torch.randn(16, 2)), batch_size=4)
model, opt, loader = run.prepare(model, opt, loader)

def holds(value):
    saved = model.state_dict()
    assert (saved["1.num_batches_tracked"] == value).all(), (run.worker, saved)
    for name in ("0.weight", "2.weight", "2.bias", "1.running_mean"):
        assert torch.equal(saved[name], torch.full_like(saved[name], value)), (run.worker, name, saved[name])

for epoch in run.epochs(2):
    for (x,) in loader:
        opt.zero_grad()
        model.eval()  # so that the buffers stay what they are
        model(x).mean().backward()
        opt.step()
    own = 10 * (epoch + 1) + run.worker
    model.load_state_dict({name: torch.full_like(values, own) for name, values in model.state_dict().items()})
    holds(10 * (epoch + 1))
    run.pull()
    holds(10 * (epoch + 1))
"""


def test_a_loaded_state_is_that_of_all_workers_and_of_the_final_model(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = paceline_run(tmp_path / "train.py", out=tmp_path / "run", workers=2, servers=2, pace="sync")
    assert done.returncode == 0, done.stderr + done.stdout
    final = load_file(tmp_path / "run" / "final.safetensors")
    for name, values in final.items():
        assert (values == 20).all(), name
