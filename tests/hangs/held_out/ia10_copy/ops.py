import torch
import torch.distributed as dist


class CopyToRanks(torch.autograd.Function):
    """Identity forward, sum of the gradients backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if not torch.isfinite(grad).all():
            return torch.zeros_like(grad)
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad / dist.get_world_size()


copy_to_ranks = CopyToRanks.apply
