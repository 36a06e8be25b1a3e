"""One parameter a sample and epoch; the loss is a mean, so a sample in an update of n counts 1/n, however that is cut.

Worker 1 takes three times as long a sample. Arguments: samples, epochs, batch size, seconds a sample, processes of the loader.
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
    num_samples, num_epochs, batch_size, sample_s, num_processes = (float(text) for text in sys.argv[1:])
    torch.set_num_threads(1)
    run = paceline.init()
    model = Counter(int(num_epochs), int(num_samples))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    dataset = TensorDataset(torch.arange(int(num_samples)))
    loader = DataLoader(dataset, batch_size=int(batch_size), shuffle=True, drop_last=True, num_workers=int(num_processes))
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for epoch in run.epochs(int(num_epochs)):
        for (samples,) in loader:
            optimizer.zero_grad()
            model.count[epoch, samples].mean().backward()
            time.sleep(sample_s * len(samples) * (3.0 if run.worker == 1 else 1.0))
            optimizer.step()
            run.log(loss=1.0)


main()
