import torch
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, n=480, dim=12):
        g = torch.Generator().manual_seed(3)
        self.x = torch.randn(n, dim, generator=g)
        self.y = torch.sin(self.x.sum(1, keepdim=True))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def loaders(batch):
    return DataLoader(Waves(), batch_size=batch, shuffle=True, drop_last=True)
