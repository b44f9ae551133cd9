"""Regions of a model whose inputs are shared by all ranks."""
import torch
import torch.distributed as dist


class CopyToRanks(torch.autograd.Function):
    """Identity; the gradients of all ranks are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


def copy_to_ranks(x):
    return CopyToRanks.apply(x)
