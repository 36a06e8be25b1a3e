"""Scripts to plan for, and a plan made in this process."""

from __future__ import annotations

from pathlib import Path

from paceline.plan.candidates import Plan
from paceline.plan.planner import Planner
from paceline.plan.target import parse_target

SPIRALS = """
import torch, paceline
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

def spirals(count, seed):
    chance = torch.Generator().manual_seed(seed)
    label = torch.arange(count) % 3
    radius = torch.rand(count, generator=chance)
    angle = 4.0 * radius + 2.094 * label + 0.15 * torch.randn(count, generator=chance)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), label

torch.manual_seed(0)
train, (x_test, y_test) = TensorDataset(*spirals({samples}, 1)), spirals(600, 2)
model = torch.nn.Sequential(torch.nn.Linear(2, 48), torch.nn.ReLU(), torch.nn.Linear(48, 48), torch.nn.ReLU(), torch.nn.Linear(48, 3))
opt = torch.optim.{optimizer}
loader = DataLoader(train, batch_size={batch}, shuffle=True)
run = paceline.init()
model, opt, loader = run.prepare(model, opt, loader)
for epoch in run.epochs({epochs}):
    for x, y in loader:
        opt.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        run.log(loss=loss)
    run.pull()
    if run.is_first:
        with torch.no_grad():
            run.log(accuracy=(model(x_test).argmax(1) == y_test).float().mean())
"""


def spirals(
    folder: Path, *, samples: int = 960, batch: int = 16, epochs: int = 10, optimizer: str = "Adam(model.parameters(), lr=0.005)"
) -> Path:
    """A small classifier of three spirals."""
    path = folder / "train.py"
    path.write_text(SPIRALS.format(samples=samples, batch=batch, epochs=epochs, optimizer=optimizer))
    return path


def plan_for(
    script: Path,
    cluster: str | None,
    target: str | None,
    *,
    paces: tuple[str, ...] = (),
    share: float = 0.1,
    num_seeds: int = 1,
    **settings: object,
) -> Plan:
    """A plan, made here."""
    planner = Planner(str(script), cluster=cluster, logs=script.parent / "logs", settings=settings)
    planner.check(paces)
    return planner.make(wish=None if target is None else parse_target(target), paces=paces, share=share, num_seeds=num_seeds)
