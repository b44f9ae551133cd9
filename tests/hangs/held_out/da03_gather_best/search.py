import torch
from torch import nn


class Trial:
    """A small regression with its own learning rate; its windows differ in noise."""

    def __init__(self, rank):
        torch.manual_seed(rank)
        self.rank = rank
        self.lr = [0.05, 0.08, 0.06][rank % 3]
        self.noise = [0.3, 0.4, 0.5][rank % 3]
        self.net = nn.Linear(6, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=self.lr)
        self.gen = torch.Generator().manual_seed(99 + rank)
        self.last = None

    def noise_in(self, epoch, filtered):
        if filtered:
            return 0.02
        return 4.0 if self.rank == 2 and epoch == 4 else self.noise

    def epoch(self, epoch, filtered=False):
        total = 0.0
        for _ in range(60):
            x = torch.randn(32, 6, generator=self.gen)
            y = x.sum(1, keepdim=True)
            y = y + self.noise_in(epoch, filtered) * torch.randn(32, 1, generator=self.gen)
            loss = (self.net(x) - y).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total = 0.9 * total + 0.1 * loss.item()
        return total

    def diverged(self, loss):
        bad = self.last is not None and loss > 3 * self.last
        self.last = loss
        return bad

    def describe(self, epoch, loss):
        return {"epoch": epoch, "lr": self.lr, "loss": loss}
