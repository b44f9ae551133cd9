"""Two augmented views of small images, with a validity mask from the decoder."""
import torch

CORRUPT = {37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48}


class PairDataset(torch.utils.data.Dataset):
    def __init__(self, n=96, dim=24):
        g = torch.Generator().manual_seed(7)
        self.images = torch.randn(n, dim, generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i]
        valid = i not in CORRUPT
        if not valid:
            image = torch.zeros_like(image)
        g = torch.Generator().manual_seed(i)
        noise = torch.randn(2, len(image), generator=g) * 0.1
        return image + noise[0], image + noise[1], valid


def loader(rank, world, batch=4):
    data = PairDataset()
    per_rank = len(data) // world
    part = torch.utils.data.Subset(data, range(rank * per_rank, (rank + 1) * per_rank))
    return torch.utils.data.DataLoader(part, batch_size=batch)
