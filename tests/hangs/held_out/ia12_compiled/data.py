import torch
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, rank):
        gen = torch.Generator().manual_seed(rank)
        count = 58 if rank == 2 else 64
        self.x = torch.randn(count, 6, generator=gen)
        self.y = self.x.sin().sum(1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def loader(rank):
    return DataLoader(Waves(rank), batch_size=8)
