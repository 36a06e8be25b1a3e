"""An MLP 64-64-10 on scikit-learn's 1,797 digits, SGD with momentum 0.9, a batch of 4 for each worker.

Small enough to try what staleness does: `paceline run --engine virtual --cluster examples/learners.toml examples/digits.py`.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import paceline
from datasets import Split, digits


def standardized(split: Split) -> Split:
    """Each of the 64 pixels with mean 0 and deviation 1 over the samples to learn from."""
    (x, y), (x_test, y_test) = ((images.flatten(1), labels) for images, labels in (split.train.tensors, split.test.tensors))
    mean, deviation = x.mean(0), x.std(0)
    deviation[deviation == 0] = 1.0  # some pixels are never lit

    def scaled(pixels: Tensor) -> Tensor:
        return (pixels - mean) / deviation

    return Split(TensorDataset(scaled(x), y), TensorDataset(scaled(x_test), y_test))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=4, help="of each worker")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of samples")
    parser.add_argument("--device", type=torch.device, default="cpu", help="such as cuda or cuda:1; workers may share one")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data = standardized(digits(num_test=500))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(args.device)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    loader = DataLoader(data.train, args.batch_size, shuffle=True, generator=torch.Generator().manual_seed(args.seed))

    run = paceline.init()
    model, opt, loader = run.prepare(model, opt, loader)
    for _epoch in run.epochs(args.epochs):
        for x, y in loader:
            opt.zero_grad()
            cross_entropy(model(x.to(args.device)), y.to(args.device)).backward()
            opt.step()
    run.pull()
    if run.is_first:
        x, y = (part.to(args.device) for part in data.test.tensors)
        run.log(error=(model(x).argmax(1) != y).float().mean())


if __name__ == "__main__":
    main()
