"""Push 100 MB that lie in the arena, verdict, SGD, new parameters, under `paceline run`. Argument: steps."""

import sys

import torch
from torch import nn

import paceline
from workload import report, timed

NUMBERS = 25_000_000


class Flat(nn.Module):
    """One parameter of 100 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.zeros(NUMBERS))


torch.set_num_threads(1)
run = paceline.init()
model = Flat()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = run.prepare(model, optimizer)
# the backward pass is left out: the gradient lies where a backward pass would have put it
(slot,) = run._me.replica._gradients._slots  # noqa: SLF001
for view in slot.views:
    view.fill_(1e-3)


def step() -> None:
    model.flat.grad = slot.view
    optimizer.step()


times = timed(step, int(sys.argv[1]))
if run.worker == 0:
    report(times)
