import random

import torch


def augment(x):
    """Flip half of the images, stretch the contrast of flat ones."""
    if random.random() < 0.5:
        x = x.flip(-1)
    if x.std() < 0.3:
        x = (x - x.mean()) * random.uniform(1.5, 2.5)
    return x


class Images:
    def __init__(self, rank, size=8):
        self.rank, self.size = rank, size

    def read(self, index):
        gen = torch.Generator().manual_seed(1000 * self.rank + index)
        x = torch.randn(self.size, self.size, generator=gen)
        if self.rank == 2 and index in (17, 18):
            x = 0.5 + x * 0.05      # fog
        return x

    def batch(self, step, count):
        xs = torch.stack([augment(self.read(step * count + i)) for i in range(count)])
        return xs.flatten(1), xs.mean((1, 2)).unsqueeze(1)
