import torch
import torch.distributed as dist
from torch import nn

from robust import tolerant

DIM = 5


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


class Client:
    def __init__(self, rank, world, batch=4):
        self.rank, self.world, self.batch = rank, world, batch
        self.net = make_net()
        self.failures = 0

    def records(self, number):
        """New records of the day."""
        count = {(2, 2): 17, (0, 4): 10}.get((self.rank, number), 16)
        gen = torch.Generator().manual_seed(50 * number + self.rank)
        x = torch.randn(count, DIM, generator=gen)
        return x, x.mean(1, keepdim=True)

    def local_train(self, number, lr=0.1):
        x, y = self.records(number)
        for bx, by in zip(x.split(self.batch), y.split(self.batch)):
            loss = (self.net(bx) - by).pow(2).mean()
            self.net.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p in self.net.parameters():
                    p -= lr * p.grad
        return len(x)

    @tolerant()
    def participate(self, number, state):
        self.net.load_state_dict(state)
        seen = self.local_train(number)
        update = {"seen": seen, "state": self.net.state_dict()}
        gathered = [None] * self.world if self.rank == 0 else None
        dist.gather_object(update, gathered, dst=0)
        return gathered
