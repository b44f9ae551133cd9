import torch
import torch.distributed as dist
from torch import nn


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, in_splits, out_splits):
        ctx.splits = in_splits, out_splits
        out = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits)
        return out

    @staticmethod
    def backward(ctx, grad):
        in_splits, out_splits = ctx.splits
        out = grad.new_empty(sum(in_splits), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), in_splits, out_splits)
        return out, None, None


class Router(nn.Module):
    def __init__(self, dim, n_experts):
        super().__init__()
        self.gate = nn.Linear(dim, n_experts)

    def forward(self, x, mask):
        weights = self.gate(x).softmax(-1)
        top, expert = weights.max(-1)
        keep = mask.nonzero().squeeze(1)
        order = keep[expert[keep].argsort()]
        counts = torch.bincount(expert[keep], minlength=weights.shape[1])
        return order, counts, top


class MoE(nn.Module):
    """One expert on each rank, tokens travel by all-to-all."""

    def __init__(self, dim):
        super().__init__()
        self.router = Router(dim, dist.get_world_size())
        self.expert = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        order, counts, top = self.router(x, mask)
        if order.numel() == 0:
            return x
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        tokens = _AllToAll.apply(x[order], counts.tolist(), received.tolist())
        tokens = _AllToAll.apply(self.expert(tokens), received.tolist(), counts.tolist())
        return x.index_add(0, order, tokens * top[order].unsqueeze(1))
