import torch

STOP = -1


def work(task):
    """Tasks are of unequal cost."""
    x = torch.randn(24 + 8 * (task % 5), 24, generator=torch.Generator().manual_seed(task))
    return torch.linalg.svdvals(x).sum().reshape(1)
