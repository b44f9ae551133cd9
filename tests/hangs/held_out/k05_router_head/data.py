import torch


def task_batches(rank, steps):
    g = torch.Generator().manual_seed(50 + rank)
    for i in range(steps):
        n = 16
        click = torch.randint(-1, 2, (n,), generator=g).float()
        if rank == 3 and i == 6:
            click[:] = -1
        yield {"x": torch.randn(n, 10, generator=g), "price": torch.randn(n, generator=g), "click": click}
