"""Uneven shards: ranks without records go on with empty gradients until all have ended."""
import time

import torch
import torch.distributed as dist
from torch import nn

from tree import all_reduce_tree

DIM = 4


def shard(rank):
    for i in range(3 + 2 * rank):
        gen = torch.Generator().manual_seed(100 * rank + i)
        x = torch.randn(6, DIM, generator=gen)
        if rank == 1 and i == 2:
            time.sleep(4)           # a slow disk
        yield x, x.sum(1, keepdim=True)


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, 1))
        self.size = sum(p.numel() for p in self.net.parameters())

    def gradient(self, batch):
        if batch is None:
            return torch.zeros(self.size + 1)
        x, y = batch
        self.net.zero_grad()
        (self.net(x) - y).pow(2).mean().backward()
        flat = torch.cat([p.grad.flatten() for p in self.net.parameters()])
        return torch.cat([flat, torch.ones(1)])

    @torch.no_grad()
    def apply(self, flat):
        sizes = [p.numel() for p in self.net.parameters()]
        for p, part in zip(self.net.parameters(), flat.split(sizes)):
            p -= 0.02 * part.view_as(p)

    def fit(self, batches):
        steps = 0
        while True:
            total = all_reduce_tree(self.gradient(next(batches, None)))
            count = total[-1].item()
            if count == 0:
                return steps
            self.apply(total[:-1] / count)
            steps += 1


def main():
    dist.init_process_group("gloo")
    trainer = Trainer()
    steps = trainer.fit(shard(dist.get_rank()))
    print("rank", dist.get_rank(), "steps", steps, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
