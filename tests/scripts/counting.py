"""One parameter a sample; its gradient is one-hot, 1 + a tag that no two computations of a sample share.

The tag of worker w's a-th computation of a sample is 2 ** -(1 + w + N * (a mod 5)): after plain SGD with rate 1 a
parameter that was folded once, in an update of k equal batches, holds -(1 + tag) / k, and no sum of two such values
with different tags looks like one. Arguments: samples, epochs, batch size, seconds of sleep a step.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


class Counter(nn.Module):
    """Parameters `count[epoch, sample]`."""

    def __init__(self, num_epochs: int, num_samples: int) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.zeros(num_epochs, num_samples))


def main() -> None:
    num_samples, num_epochs, batch_size, sleep_s = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    run = paceline.init()
    model = Counter(num_epochs, num_samples)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = DataLoader(TensorDataset(torch.arange(num_samples)), batch_size=batch_size, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    attempts = torch.zeros(num_epochs, num_samples)
    for epoch in run.epochs(num_epochs):
        for (samples,) in loader:
            optimizer.zero_grad()
            values = 1.0 + 2.0 ** -(1.0 + run.worker + run.num_workers * (attempts[epoch, samples] % 5))
            attempts[epoch, samples] += 1
            (model.count[epoch, samples] * values).sum().backward()
            time.sleep(sleep_s)
            optimizer.step()
            run.log(loss=1.0)


main()
