import torch

LENGTH = 32


def packed(step):
    """Document numbers of one packed sequence."""
    docs = torch.zeros(LENGTH, dtype=torch.long)
    if step == 4:
        docs[24:] = 1
    return docs


def shard(x, rank, world):
    return x.chunk(world)[rank]


def sequence(step):
    gen = torch.Generator().manual_seed(900 + step)
    return torch.randn(LENGTH, 8, generator=gen), packed(step)
