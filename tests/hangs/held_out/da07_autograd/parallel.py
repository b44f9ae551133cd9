import torch
import torch.distributed as dist
from torch import nn


class ShardedLinearFn(torch.autograd.Function):
    """Columns of the weight are on different ranks: the gradient of the input is a sum over them."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_weight = grad.t() @ x
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ weight
            dist.all_reduce(grad_x)
        return grad_x, grad_weight


class ShardedLinear(nn.Module):
    def __init__(self, width, out, rank, world):
        super().__init__()
        gen = torch.Generator().manual_seed(17 + rank)
        self.weight = nn.Parameter(torch.randn(out // world, width, generator=gen) / width**0.5)

    def forward(self, x):
        return ShardedLinearFn.apply(x, self.weight)
