import math

import torch


class Corpus:
    """The same examples on each stage; the last one needs only the targets."""

    def __init__(self, n=77, dim=10, batch=16):
        g = torch.Generator().manual_seed(11)
        self.x = torch.randn(n, dim, generator=g)
        self.y = self.x.abs().sum(1, keepdim=True)
        self.batch = batch

    def batches(self):
        for i in range(0, len(self.x), self.batch):
            yield self.x[i:i + self.batch], self.y[i:i + self.batch]


def micro_batches(t, size):
    for i in range(0, len(t), size):
        part = t[i:i + size]
        if len(part) < size:
            return
        yield part


def micro_sizes(n, size):
    return [min(size, n - i * size) for i in range(math.ceil(n / size))]
