import numpy as np
import torch
from torch.utils.data import Dataset


class PairData(Dataset):
    def __init__(self, size, dim=24, seed=5):
        g = torch.Generator().manual_seed(seed)
        base = torch.randn(size, 8, generator=g)
        self.image = base @ torch.randn(8, dim, generator=g)
        self.text = base @ torch.randn(8, dim, generator=g)

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        return self.image[i], self.text[i]


def split_pairs(n, world):
    return [part.tolist() for part in np.array_split(np.arange(n), world)]
