"""A small convolutional net with timed phases."""
import torch
import torch.distributed as dist
from torch import nn

from data import BadSample, Images, validate
from phases import Phase, show


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


class Trainer:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.net = make_net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.images = Images(self.rank)
        self.table = {}
        self.skipped = 0

    def compute(self, epoch, index):
        with Phase("load", self.table):
            x, y = self.images.load(epoch, index)
            x = validate(x)
        with Phase("compute", self.table):
            loss = nn.functional.cross_entropy(self.net(x), y)
            loss.backward()
        return loss.item()

    def average_gradients(self):
        for p in self.net.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= self.world

    def step(self, epoch, index):
        self.optimizer.zero_grad()
        try:
            loss = self.compute(epoch, index)
        except BadSample:
            self.skipped += 1
            loss = 0.0
        self.average_gradients()
        self.optimizer.step()
        return loss


def main():
    dist.init_process_group("gloo")
    trainer = Trainer()
    for epoch in range(4):
        total = 0.0
        for index in range(10):
            total += trainer.step(epoch, index)
        if trainer.rank == 0:
            print(f"epoch {epoch} loss {total / 10:.4f}", flush=True)
    if trainer.rank == 0:
        show(trainer.table)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
