import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from native import Arena, copy_block

SHAPE = (12, 16)


class Feed:
    """A ring of blocks; the oldest is released when memory is short."""

    def __init__(self, rank, blocks=4, limit=None):
        self.rng = np.random.default_rng(rank)
        self.arena = Arena(blocks)
        self.blocks = blocks
        self.limit = limit
        for number in range(blocks):
            self.arena.fill(number, self.rng.standard_normal(SHAPE))

    def tidy(self, step):
        if self.limit is not None and step >= self.limit:
            self.arena.release((step + 1) % self.blocks)

    def batch(self, step):
        number = step % self.blocks
        x = torch.from_numpy(copy_block(self.arena, number, SHAPE))
        self.arena.fill(number, self.rng.standard_normal(SHAPE))
        self.tidy(step)
        return x


class Mixer(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))

    def forward(self, x):
        return x + self.net(x)


def train(model, feed, steps=20):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        x = feed.batch(step)
        loss = nn.functional.mse_loss(model(x), x.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"{step} {loss.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank = dist.get_rank()
    feed = Feed(rank, limit=6 if rank == 2 else None)
    train(DDP(Mixer()), feed)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
