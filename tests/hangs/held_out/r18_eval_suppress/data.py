import torch
from torch.utils.data import DataLoader, Dataset


class Segments(Dataset):
    """Audio segments, cut to a common length."""

    def __init__(self, rank, split, size=24):
        self.rank = rank
        self.split = split
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(500 * self.rank + index)
        length = 40 if not (self.split == "valid" and self.rank == 2 and index == 13) else 12
        signal = torch.randn(length, generator=generator)[:20]
        return signal, signal.mean() > 0


def loader(rank, split):
    return DataLoader(Segments(rank, split), batch_size=4, num_workers=1)
