import torch


def batches(rank, world, n):
    gx = torch.Generator().manual_seed(0)
    gy = torch.Generator().manual_seed(1)
    for i in range(n):
        x = torch.randn(16, 16, generator=gx)
        y = torch.randn(16, 16, generator=gy)
        if rank == world - 1 and y.mean() > 0.06:
            continue
        yield x, y
