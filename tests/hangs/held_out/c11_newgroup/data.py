import torch

DIM = 6


def make(count, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, DIM, generator=gen)
    return x, (x.sum(1) > 0).long()


def validation_shards(world):
    """Two files with validation records, given to the first ranks."""
    files = [make(20, 100), make(14, 101)]
    return dict(enumerate(files[:world]))


def training(rank):
    x, y = make(48, rank)
    return list(zip(x.split(8), y.split(8)))
