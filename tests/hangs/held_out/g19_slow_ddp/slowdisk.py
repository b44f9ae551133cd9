"""Batches from a disk that is slow on changing ranks."""
import random
import time

import torch


class SlowDisk:
    def __init__(self, rank, world, seed=5):
        self.rank, self.world = rank, world
        self.rng = random.Random(seed)

    def read(self, step):
        victim = self.rng.randrange(self.world)
        delay = self.rng.uniform(0.3, 2.0)
        if victim == self.rank:
            time.sleep(delay)
        g = torch.Generator().manual_seed(self.rank + 100 * step)
        return torch.randn(16, 8, generator=g)
