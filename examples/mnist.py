"""A small CNN on 5,000 MNIST digits: `python examples/mnist.py`, or `paceline run --workers 4 examples/mnist.py`.

It normalises by groups of channels, not by batches, so one worker's statistics never stand for another's.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import paceline
from datasets import mnist


def network() -> nn.Module:
    """Three convolutions and a linear layer, 87,946 parameters; the early pooling keeps a step short."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.MaxPool2d(4),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.GroupNorm(4, 64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.GroupNorm(4, 64),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 10),
    )


@torch.no_grad()
def tested(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    """The share of `images` that are classified right, and their mean loss."""
    scores = model(images)
    return {"accuracy": (scores.argmax(1) == labels).float().mean().item(), "test_loss": cross_entropy(scores, labels).item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--momentum", type=float, help="train by SGD with this momentum, not by AdamW")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of samples")
    parser.add_argument("--device", type=torch.device, default="cpu", help="such as cuda or cuda:1; workers may share one")
    args = parser.parse_args()

    torch.set_num_threads(1)  # steps as short as these gain nothing from more
    torch.manual_seed(args.seed)
    data = mnist()
    model = network().to(args.device)
    if args.momentum is None:
        opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    else:
        opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    loader = DataLoader(data.train, args.batch_size, shuffle=True, generator=torch.Generator().manual_seed(args.seed))

    run = paceline.init()
    model, opt, loader = run.prepare(model, opt, loader)
    for _epoch in run.epochs(args.epochs):
        for images, labels in loader:
            opt.zero_grad()
            loss = cross_entropy(model(images.to(args.device)), labels.to(args.device))
            loss.backward()
            opt.step()
            run.log(loss=loss)
        run.pull()
        if run.is_first:
            run.log(**tested(model, *(part.to(args.device) for part in data.test.tensors)))


if __name__ == "__main__":
    main()
