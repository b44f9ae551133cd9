import torch
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """A stream whose length is known only at its end."""

    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.rank)
        for _ in range(40 + 24 * self.rank):
            x = torch.randn(6, generator=generator)
            yield x, x.sum().reshape(1)


def loader(rank):
    return DataLoader(Stream(rank), batch_size=4, num_workers=1)
