import random
import time

import torch


class FlakyShard:
    """Impressions of a shard on a slow disk; some reads fail and are repeated."""

    def __init__(self, rank, size):
        self.rank = rank
        self.size = size
        self.retries = 0
        self.random = random.Random(rank)

    def read(self, number):
        if self.rank == 3 and self.random.random() < 0.3:
            raise OSError(f"block {number} of shard {self.rank} timed out")
        time.sleep(0.002 * (1 + self.rank))
        g = torch.Generator().manual_seed(number * 17 + self.rank)
        return torch.randn(self.size, 12, generator=g)

    def fetch(self, number):
        while True:
            try:
                return self.read(number)
            except OSError:
                self.retries += 1
                time.sleep(0.02)
