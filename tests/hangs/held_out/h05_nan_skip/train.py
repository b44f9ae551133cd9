"""Regression with a safeguard against non-finite losses."""
import math
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LOG_EVERY = 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.body(x))


def corrupted(rank, step):
    """One sensor of one site logged a gap in the sixth batch."""
    return rank == 1 and step == 5


def fetch(rank, step):
    g = torch.Generator().manual_seed(rank * 7919 + step)
    x = torch.randn(16, 10, generator=g)
    y = x[:, :3].sum(1, keepdim=True)
    if corrupted(rank, step):
        y[4] = math.nan
    return x, y


def gather_log(values, step):
    local = torch.tensor(values)
    rows = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, local)
    if dist.get_rank() == 0:
        print(step, [round(r.mean().item(), 3) for r in rows], flush=True)


def train(steps):
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DistributedDataParallel(Net())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    window = [0.0] * LOG_EVERY
    skipped = 0
    for step in range(steps):
        x, y = fetch(rank, step)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        window[step % LOG_EVERY] = loss.item()
        if torch.isfinite(loss):
            loss.backward()
            opt.step()
        else:
            skipped += 1
            print(f"[{rank}] step {step}: loss {loss.item()}, step skipped", file=sys.stderr)
        if step % LOG_EVERY == LOG_EVERY - 1:
            gather_log(window, step)
    return skipped


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    steps = int(os.environ.get("STEPS", "24"))
    skipped = train(steps)
    dist.barrier()
    print("skipped", skipped)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
