import torch
import torch.distributed as dist
from torch import nn


class GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, group):
        ctx.group, ctx.n = group, len(rows)
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, rows.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        start = dist.get_rank(ctx.group) * ctx.n
        return grad[start:start + ctx.n], None


class InfoNce(nn.Module):
    """Pairs whose caption is missing take no part in the loss."""

    def __init__(self, group, temperature=0.1):
        super().__init__()
        self.group = group
        self.temperature = temperature

    def forward(self, image, text, valid):
        keys = GatherRows.apply(text, self.group)
        if not valid.any():
            return (image.sum() + text.sum()) * 0.0
        rank = dist.get_rank(self.group)
        target = torch.arange(len(image)) + rank * len(image)
        logits = image @ keys.T / self.temperature
        return nn.functional.cross_entropy(logits[valid], target[valid])
