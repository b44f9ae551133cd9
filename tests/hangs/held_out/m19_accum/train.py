"""Gradient accumulation with a synchronisation at the end of each window and of the epoch."""
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import LambdaLR

from corpus import length_buckets

ACCUM = 4


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.model = DDP(nn.Sequential(nn.Linear(10, 30), nn.GELU(), nn.Linear(30, 1)))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=5e-3)
        self.sched = LambdaLR(self.opt, lambda s: min(1.0, (s + 1) / 10))
        self.rank = rank
        self.updates = 0

    def micro(self, x, last):
        with contextlib.nullcontext() if last else self.model.no_sync():
            loss = (self.model(x) - x.mean(1, keepdim=True)).square().mean() / ACCUM
            loss.backward()
        return loss.item() * ACCUM

    def apply(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad()
        self.sched.step()
        self.updates += 1

    def epoch(self, batches):
        total = 0.0
        for i, x in enumerate(batches, 1):
            last = i % ACCUM == 0 or i == len(batches)
            total += self.micro(x, last)
            if last:
                self.apply()
        return total / len(batches)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trainer = Trainer(rank)
    for epoch in range(4):
        batches = length_buckets(epoch, rank, world)
        means = [None] * world
        dist.all_gather_object(means, trainer.epoch(batches))
        if rank == 0:
            print(f"epoch {epoch} loss {sum(means) / world:.4f} updates {trainer.updates}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
