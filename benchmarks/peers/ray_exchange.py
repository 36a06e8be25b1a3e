"""Push 100 MB, apply SGD, pull 100 MB with a Ray actor. Argument: steps."""

import sys

import numpy as np
import ray

from workload import report, timed

NUMBERS = 25_000_000
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)


@ray.remote
class Server:
    """Parameters and their SGD."""

    def __init__(self) -> None:
        self.parameter = np.zeros(NUMBERS, np.float32)

    def push(self, gradient: np.ndarray) -> np.ndarray:
        """Apply a gradient, return the parameters."""
        self.parameter -= 0.01 * gradient
        return self.parameter


server = Server.remote()
gradient = np.full(NUMBERS, 1e-3, np.float32)
mine = np.empty(NUMBERS, np.float32)


def step() -> None:
    np.copyto(mine, ray.get(server.push.remote(gradient)))


report(timed(step, int(sys.argv[1])))
ray.shutdown()
