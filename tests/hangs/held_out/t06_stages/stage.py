import torch
import torch.distributed as dist
from torch import nn


class Stage:
    """One part of a model; its neighbours are the ranks beside it."""

    def __init__(self, rank, world, dim=8):
        torch.manual_seed(rank)
        self.rank, self.world, self.dim = rank, world, dim
        self.net = nn.Sequential(nn.Linear(dim, dim), nn.ReLU() if rank == 0 else nn.Tanh())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.saved = []
        self.overflows = 0

    @property
    def first(self):
        return self.rank == 0

    @property
    def last(self):
        return self.rank == self.world - 1

    def rescale(self, y):
        scale = y.detach().abs().amax(1, keepdim=True)
        return y / scale

    def forward(self, micro):
        if self.first:
            x = micro
        else:
            x = torch.empty(4, self.dim)
            dist.recv(x, src=self.rank - 1)
            x.requires_grad_()
        y = self.net(x)
        y = self.rescale(y)
        if not torch.isfinite(y).all():
            self.overflows += 1
            return
        self.saved.append((x, y))
        if not self.last:
            dist.send(y.detach(), dst=self.rank + 1)

    def backward(self):
        x, y = self.saved.pop(0)
        if self.last:
            y.pow(2).mean().backward()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, src=self.rank + 1)
            y.backward(grad)
        if not self.first:
            dist.send(x.grad, dst=self.rank - 1)
