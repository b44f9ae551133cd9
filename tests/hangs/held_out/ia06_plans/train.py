import logging

import torch
import torch.distributed as dist
from torch import nn

from curriculum import Curriculum


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 8, batch_first=True)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        _, h = self.rnn(x)
        return self.out(h[-1])


def sample(length, gen):
    x = torch.randint(0, 2, (8, length, 3), generator=gen).float()
    return x, x.sum((1, 2)).unsqueeze(1) / length


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model = Counter()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.gen = torch.Generator().manual_seed(dist.get_rank())
        self.curriculum = Curriculum()

    def reduce(self):
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, part in zip(self.model.parameters(), flat.split([p.numel() for p in self.model.parameters()])):
            p.grad.copy_(part.view_as(p))

    def epoch(self, number):
        plan = self.curriculum.plan(number)
        total = 0.0
        for length in plan.lengths:
            x, y = sample(length, self.gen)
            loss = plan.scale(length) * (self.model(x) - y).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.reduce()
            self.opt.step()
            total += loss.item()
        return total


def main():
    logging.basicConfig(level=logging.WARNING)
    dist.init_process_group("gloo")
    trainer = Trainer()
    for number in range(5):
        total = trainer.epoch(number)
        if dist.get_rank() == 0:
            print("epoch", number, total, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
