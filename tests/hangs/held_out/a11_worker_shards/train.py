import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from shards import StagedRows, Stager

SHARDS = 6
CAPACITY = {0: 8, 1: 4, 2: 8}


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.rank = rank
        self.model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.02)
        self.losses = []

    def step(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.losses.append(loss.item())

    def epoch(self, loader):
        for x, y in loader:
            self.step(x, y)
            if self.rank == 0 and len(self.losses) % 10 == 0:
                print(f"batch {len(self.losses)} loss {self.losses[-1]:.4f}", flush=True)

    def mean_loss(self):
        t = torch.tensor([sum(self.losses), float(len(self.losses))])
        dist.all_reduce(t)
        return (t[0] / t[1]).item()


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    names = [f"rank{rank}-{i:03d}.pt" for i in range(SHARDS)]
    with tempfile.TemporaryDirectory(prefix="staged-") as folder:
        trainer = Trainer(rank)
        Stager(folder, names, CAPACITY[rank]).run()
        rows = StagedRows(folder, names)
        loader = DataLoader(rows, batch_size=8, num_workers=1, prefetch_factor=2)
        trainer.epoch(loader)
        mean = trainer.mean_loss()
        if rank == 0:
            print(f"mean loss {mean:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
