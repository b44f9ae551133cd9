import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from data import Shard

log = logging.getLogger("gan")


class Pair:
    def __init__(self):
        torch.manual_seed(0)
        self.g = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
        self.d = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=2e-3)
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=2e-3)


class Trainer:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.nets = Pair()
        torch.manual_seed(10 + rank)
        self.bad_batches = 0

    def reduce(self, module, have_data):
        """Ranks without data give zeros; the mean is over ranks that have data."""
        for p in module.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= max(have_data, 1)

    def losses(self, real):
        fake = self.nets.g(torch.randn(len(real), 4))
        real_score, fake_score = self.nets.d(real), self.nets.d(fake.detach())
        d_loss = F.softplus(-real_score).mean() + F.softplus(fake_score).mean()
        return d_loss, fake

    def step(self, real, have_data):
        self.nets.opt_d.zero_grad()
        self.nets.opt_g.zero_grad()
        fake = None
        if real is not None:
            d_loss, fake = self.losses(real)
            try:
                if d_loss > 50:
                    raise ValueError("critic diverged")
                d_loss.backward()
            except ValueError as e:
                self.bad_batches += 1
                log.warning("batch left out: %s", e)
        self.reduce(self.nets.d, have_data)
        self.nets.opt_d.step()
        if fake is not None:
            F.softplus(-self.nets.d(fake)).mean().backward(
                inputs=list(self.nets.g.parameters()))
        self.reduce(self.nets.g, have_data)
        self.nets.opt_g.step()

    def epoch(self, shard):
        batches = iter(shard)
        steps = 0
        while True:
            real = next(batches, None)
            alive = torch.tensor([float(real is not None)])
            dist.all_reduce(alive)
            if alive.item() == 0:
                return steps
            if self.rank == 2 and steps == 3 and real is not None:
                real = real * 1e5
            self.step(real, int(alive.item()))
            steps += 1

    def save(self, folder):
        if self.rank == 0:
            torch.save(self.nets.g.state_dict(), os.path.join(folder, "g.pt"))
        dist.barrier()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainer = Trainer(rank, dist.get_world_size())
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(2):
            steps = trainer.epoch(Shard(rank))
            trainer.save(folder)
            print(f"rank {rank} epoch {epoch}: {steps} steps", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
