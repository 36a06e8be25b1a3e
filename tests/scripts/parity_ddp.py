"""The same under DDP (Gloo) with DistributedSampler. Arguments: model, output folder, optimizers."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from parity_parts import BATCH, data_of, model_of, optimizer_of
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
dist.init_process_group("gloo")
for name in sys.argv[3:]:
    inner = model_of(sys.argv[1])
    model = DistributedDataParallel(inner)
    optimizer = optimizer_of(name, inner)
    data = data_of(sys.argv[1])
    sampler = DistributedSampler(data, shuffle=False)
    for x, y in DataLoader(data, batch_size=BATCH // dist.get_world_size(), sampler=sampler):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        save_file(inner.state_dict(), Path(sys.argv[2]) / f"{name}.safetensors")
dist.destroy_process_group()
