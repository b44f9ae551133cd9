import torch
import torch.distributed as dist


class SharedNegatives:
    """Draws candidate items on every rank and shares them, until each has enough that are no positives."""

    def __init__(self, items, seed, chunk=16):
        self.items = items
        self.chunk = chunk
        self.g = torch.Generator().manual_seed(seed)

    def share(self, local):
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, local)
        return torch.cat(parts)

    def fill(self, positives, count):
        found = []
        while len(found) < count:
            local = torch.randint(self.items, (self.chunk,), generator=self.g)
            for item in self.share(local).tolist():
                if item not in positives:
                    found.append(item)
        return torch.tensor(found[:count])
