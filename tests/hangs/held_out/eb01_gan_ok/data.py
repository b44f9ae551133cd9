import time

import torch


class Shard:
    """A shard of images; shards differ in length, and one of them lies on a slow disk."""

    def __init__(self, rank, batch=16, slow=0.3):
        self.rank, self.batch, self.slow = rank, batch, slow
        self.count = [9, 12, 7][rank % 3]
        self.gen = torch.Generator().manual_seed(rank)

    def __iter__(self):
        for _ in range(self.count):
            if self.rank == 1:
                time.sleep(self.slow)
            yield torch.randn(self.batch, 6, generator=self.gen) * 0.3 + 1.0
