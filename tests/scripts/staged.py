"""`launched.py` with its model on a device that is pretended: what is copied to and fro comes at once or as late as it may.

With SHARDS_THERE in the environment a group's shards are on that device too.
"""

import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from paceline.session import whole
from paceline.tensors import replica
from replicas import Pretended

device = Pretended(seed=3)
replica.staging_for = lambda *_: device
if "SHARDS_THERE" in os.environ:
    whole.device_of_shards = lambda _: torch.device("cpu")
runpy.run_path(str(Path(__file__).parent / "launched.py"), run_name="__main__")
print(f"{device.num_brought} gradients came off the device", flush=True)
