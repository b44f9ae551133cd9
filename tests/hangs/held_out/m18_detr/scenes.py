import torch
from torch.utils.data import Dataset


def shard_for(n, rank, world):
    per = n // world
    extra = n % world
    start = rank * per + min(rank, extra)
    return range(start, start + per + (rank < extra))


class SceneData(Dataset):
    def __init__(self, indices, seed):
        self.indices, self.seed = indices, seed

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 * self.seed + self.indices[i])
        return torch.randn(20, generator=g), torch.rand(int(torch.randint(1, 4, (1,), generator=g)), 4, generator=g)


def collate(rows):
    return torch.stack([x for x, _ in rows]), [boxes for _, boxes in rows]
