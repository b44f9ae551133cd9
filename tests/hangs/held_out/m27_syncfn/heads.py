import torch
import torch.distributed as dist
from torch import nn


class GradMean(torch.autograd.Function):
    """Identity; its gradient is the mean over all ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad / dist.get_world_size()


class BoxHead(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Linear(dim, 12)
        self.out = nn.Linear(12, 4)

    def forward(self, x):
        return self.out(torch.relu(self.fc(x))).sigmoid()
