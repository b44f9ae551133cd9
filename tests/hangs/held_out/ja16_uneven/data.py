import time

import torch


class Hospital:
    """Records of a hospital per rank; hospitals have different numbers of them, and discs of different speed."""

    SIZES = (180, 260, 332)
    DELAYS = (0.0, 0.03, 0.01)

    def __init__(self, rank, batch=16):
        self.rank = rank
        self.batch = batch
        generator = torch.Generator().manual_seed(rank)
        self.x = torch.randn(self.SIZES[rank], 6, generator=generator)
        self.y = (self.x[:, :2].sum(1) > 0).long()

    def __iter__(self):
        for start in range(0, len(self.x), self.batch):
            time.sleep(self.DELAYS[self.rank])
            y = self.y[start:start + self.batch]
            if self.rank == 1 and start % 64 == 0:
                time.sleep(0.15)
            yield self.x[start:start + self.batch], y
