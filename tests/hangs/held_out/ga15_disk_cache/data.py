import torch
import torch.distributed as dist


def raw(shard, rank):
    """The recordings of rank 2's site are longer."""
    rows = 64 if rank != 2 else 96
    g = torch.Generator().manual_seed(shard * 8 + rank)
    return torch.randn(rows, 20, generator=g) * (shard + 1) + 3


def standardize(x):
    """Zero mean, unit variance over the recordings of all sites."""
    stats = torch.cat([x.sum(0), (x * x).sum(0), torch.tensor([float(len(x))])])
    parts = [torch.empty_like(stats) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, stats)
    stats = torch.stack(parts).sum(0)
    total, squares, count = stats[:20], stats[20:40], stats[40]
    mean = total / count
    return (x - mean) / (squares / count - mean * mean).sqrt()


class Features:
    def __init__(self, cache, rank):
        self.cache = cache
        self.rank = rank

    def load(self, shard):
        x = self.cache.get(f"shard-{shard}")
        if x is None:
            x = standardize(raw(shard, self.rank))
            self.cache.put(f"shard-{shard}", x)
        return x
