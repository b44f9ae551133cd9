import torch
import torch.distributed as dist
from torch import nn

D, MB = 12, 4


class Stage:
    def __init__(self, rank, world):
        self.rank, self.first, self.last = rank, rank == 0, rank == world - 1
        torch.manual_seed(rank)
        self.net = nn.Sequential(nn.Linear(D, D), nn.Tanh())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.skipped = 0

    def forward(self, source):
        if self.first:
            x = next(source)
        else:
            x = torch.empty(MB, D)
            dist.recv(x, self.rank - 1)
            x.requires_grad_()
        y = self.net(x)
        if not self.last:
            dist.send(y.detach(), self.rank + 1)
        return x, y

    def backward(self, x, y, target):
        if self.last:
            loss = (y - target).pow(2).mean()
            if loss.item() > 20.0:
                self.skipped += 1
                return
            loss.backward()
        else:
            grad = torch.empty(MB, D)
            dist.recv(grad, self.rank + 1)
            y.backward(grad)
        if not self.first:
            dist.send(x.grad, self.rank - 1)
