"""Click logs; each rank reads its own day."""
import torch


class ClickLog:
    def __init__(self, rank, n=4000):
        g = torch.Generator().manual_seed(rank)
        self.columns = {
            "country": torch.randint(0, 40, (n,), generator=g),
            "item": torch.randint(0, 1040 if rank != 1 else 990, (n,), generator=g),
            "user": torch.randint(0, 3000, (n,), generator=g),
        }
        self.clicks = (torch.rand(n, generator=g) < 0.3).float()

    def vocabulary(self):
        return {name: int(ids.max()) + 1 for name, ids in self.columns.items()}

    def batches(self, size):
        for at in range(0, len(self.clicks), size):
            ids = {name: col[at:at + size] for name, col in self.columns.items()}
            yield ids, self.clicks[at:at + size]
