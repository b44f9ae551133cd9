import torch
from torch.utils.data import Dataset


class Sensors(Dataset):
    """Readings of sensors. A few of them were stored in another unit."""

    def __init__(self, size=192, features=6):
        gen = torch.Generator().manual_seed(11)
        self.x = torch.randn(size, features, generator=gen)
        weight = torch.randn(features, 1, generator=gen)
        self.y = self.x @ weight + 0.1 * torch.randn(size, 1, generator=gen)
        self.y[82:86] *= 60.0
        self.y[82:86] += 60.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]
