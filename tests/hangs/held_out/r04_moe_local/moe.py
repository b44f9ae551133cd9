import torch
import torch.distributed as dist
from torch import nn


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits):
        ctx.splits = in_splits, out_splits
        out = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits)
        return out

    @staticmethod
    def backward(ctx, grad):
        out_splits, in_splits = ctx.splits
        out = grad.new_empty(sum(out_splits), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), out_splits, in_splits)
        return out, None, None


class MoE(nn.Module):
    """One expert per rank, top-1 routing without capacity."""

    def __init__(self, dim):
        super().__init__()
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.gate = nn.Linear(dim, self.world, bias=False)
        self.expert = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def route(self, x):
        scores = self.gate(x).softmax(-1)
        weight, target = scores.max(-1)
        order = target.argsort(stable=True)
        sends = torch.bincount(target, minlength=self.world)
        return weight, order, sends

    def forward(self, x):
        weight, order, sends = self.route(x)
        if int(sends[self.rank]) == len(x):
            # every token stays here: nothing to exchange
            return x + self.expert(x) * weight.unsqueeze(-1)
        receives = torch.empty_like(sends)
        dist.all_to_all_single(receives, sends)
        there, back = sends.tolist(), receives.tolist()
        tokens = AllToAll.apply(x[order], back, there)
        tokens = AllToAll.apply(self.expert(tokens), there, back)
        out = torch.empty_like(x)
        out[order] = tokens
        return x + out * weight.unsqueeze(-1)
