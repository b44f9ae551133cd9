import torch
import torch.distributed as dist
from torch import nn


class _Reduced(torch.autograd.Function):
    """The table of an embedding, whose gradient is summed over the ranks as soon as it is there."""

    @staticmethod
    def forward(ctx, table):
        return table.view_as(table)

    @staticmethod
    def backward(ctx, grad):
        rows = grad.abs().sum(1).nonzero().squeeze(1)
        if rows.numel() == 0:
            return grad
        grad = grad.clone()
        counts = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, torch.tensor([rows.numel()]))
        if sum(int(c) for c in counts) > 0:
            dist.all_reduce(grad)
        return grad


class SharedEmbedding(nn.Module):
    def __init__(self, n, dim):
        super().__init__()
        self.table = nn.Parameter(torch.randn(n, dim) * 0.1)

    def forward(self, ids, weights):
        rows = _Reduced.apply(self.table)[ids]
        return (rows * weights.unsqueeze(-1)).sum(1)
