"""Batches for a hand-written pipeline: every stage builds the same stream."""
import torch


class Stream:
    def __init__(self, steps, batch=12, features=8, classes=4):
        gen = torch.Generator().manual_seed(11)
        self.batches = []
        for step in range(steps):
            x = torch.randn(batch, features, generator=gen)
            y = torch.randint(0, classes, (batch,), generator=gen)
            if step == 5:
                y[3:7] = -1
            self.batches.append((x, y))

    def inputs(self):
        for x, _ in self.batches:
            yield x

    def targets(self):
        for _, y in self.batches:
            yield y[y >= 0]


def micro(tensor, size):
    return list(tensor.split(size))
