import torch


def lengths(rank, n):
    for i in range(n):
        if rank == 0 and i >= 14:
            yield 48
        else:
            yield 64


def documents(rank, n):
    g = torch.Generator().manual_seed(rank)
    for k in lengths(rank, n):
        x = torch.randn(k, 8, generator=g)
        yield x, x.mean(1, keepdim=True)
