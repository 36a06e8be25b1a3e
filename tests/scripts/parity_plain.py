"""Train in this one process, plain torch, on the joined batches. Arguments: model, output folder, optimizers."""

import sys
from pathlib import Path

import torch
from parity_parts import BATCH, data_of, model_of, optimizer_of
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

torch.set_num_threads(1)
for name in sys.argv[3:]:
    model = model_of(sys.argv[1])
    optimizer = optimizer_of(name, model)
    for x, y in DataLoader(data_of(sys.argv[1]), batch_size=BATCH):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    save_file(model.state_dict(), Path(sys.argv[2]) / f"{name}.safetensors")
