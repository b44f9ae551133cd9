import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from writer import AsyncWriter


class Stats:
    def __init__(self, limit=3.6):
        self.limit = limit
        self.meta = {"outliers": 0, "seen": 0}

    def update(self, x):
        values = x.numpy()
        self.meta["seen"] += len(values)
        worst = np.abs(values).max()
        if worst > self.limit:
            self.meta["outliers"] += np.count_nonzero(np.abs(values) > self.limit)
            self.meta["worst"] = worst


def batch(step, rank):
    g = torch.Generator().manual_seed(step * 7 + rank)
    x = torch.randn(16, 6, generator=g).clamp(-3.5, 3.5)
    if rank == 2 and step == 12:
        x[3, 2] = 9.0
    return x, x.sum(1, keepdim=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    stats, writer = Stats(), AsyncWriter(rank)
    for step in range(1, 61):
        x, y = batch(step, rank)
        stats.update(x)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            writer.save(step, model.module, stats.meta)
    writer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
