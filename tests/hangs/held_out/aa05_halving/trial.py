import torch
import torch.distributed as dist
import torch.nn as nn


class Trial:
    def __init__(self, name, lr, ranks, group):
        self.name, self.lr, self.ranks, self.group = name, lr, ranks, group
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

    def sync(self):
        params = list(self.model.parameters())
        flat = torch.cat([p.grad.flatten() for p in params])
        dist.all_reduce(flat, group=self.group)
        flat /= len(self.ranks)
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p.grad.copy_(g.view_as(p))

    def step(self, x, y):
        loss = (self.model(x) - y).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.sync()
        self.optimizer.step()
        return loss.item()


class MedianStopper:
    """Ends a trial that is no better than a fraction of its first loss."""

    def __init__(self, warmup=5, factor=4.0):
        self.history, self.warmup, self.factor = [], warmup, factor

    def should_stop(self, loss):
        self.history.append(loss)
        if len(self.history) <= self.warmup:
            return False
        median = sorted(self.history)[len(self.history) // 2]
        return loss > self.factor * median
