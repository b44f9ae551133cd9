"""Tensor parallel layers. Activations outside of them are equal on all ranks."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class ColumnLinear(torch.autograd.Function):
    """x @ w.T with the rows of w on different ranks."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        grad_w = grad.flatten(0, 1).t() @ x.flatten(0, 1)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ w
            dist.all_reduce(grad_x)
        return grad_x, grad_w


class VocabEmbedding(nn.Module):
    """Rows start .. stop of the table. Rows taken from the old model keep their values."""

    def __init__(self, vocab, dim, pretrained):
        super().__init__()
        rows = vocab // dist.get_world_size()
        self.start = rows * dist.get_rank()
        self.stop = self.start + rows
        self.weight = nn.Parameter(torch.randn(rows, dim) * 0.1)
        if self.stop <= pretrained:
            self.weight.requires_grad_(False)

    def forward(self, tokens):
        mine = (tokens >= self.start) & (tokens < self.stop)
        local = torch.where(mine, tokens - self.start, 0)
        return SumOverRanks.apply(F.embedding(local, self.weight) * mine.unsqueeze(-1))


class ParallelMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        part = hidden // dist.get_world_size()
        self.up = nn.Parameter(torch.randn(part, dim) / dim ** 0.5)
        self.down = nn.Parameter(torch.randn(dim, part) / hidden ** 0.5)

    def forward(self, x):
        h = F.gelu(ColumnLinear.apply(x, self.up))
        return SumOverRanks.apply(h @ self.down.t())
